"""Conversion of TOML and JSON to spec models and back; all invalid fields are reported at once, with their lines.

Three steps: text to plain data, plain data to models, and pydantic's errors to problems. The allowed fields and kinds
are derived from the models.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paceline.errors import InputError, Problem, SpecError, UnitError, UnknownName, nearest
from paceline.files import read_regular
from paceline.spec.cluster import Cluster
from paceline.spec.fields import LABEL_WORDS, SpecModel, as_text
from paceline.spec.lines import line_of, locate, locate_json
from paceline.spec.network import Network
from paceline.spec.study import Case, Catalog, Study, conflicts, expand

__all__ = [
    "dump",
    "load_cases",
    "load_json",
    "load_spec",
    "load_study",
    "models_of",
    "parse_json",
    "parse_spec",
    "read_text",
    "refuse_rows",
]

N = TypeVar("N", bound=SpecModel)
MAX_BYTES = 4 * 2**20
"""Larger files are refused."""

RankedCase = tuple[str | int, ...]
Locator = Callable[[str], dict[RankedCase, int]]
Context = dict[str, Any]

WORDS: dict[str, Callable[[Context], str]] = {
    "bool_type": lambda ctx: "true or false",
    "dict_type": lambda ctx: "a table",
    "finite_number": lambda ctx: "a finite number",
    "float_type": lambda ctx: "a number",
    "greater_than": lambda ctx: f"more than {ctx['gt']:g}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']:g}",
    "int_from_float": lambda ctx: "a whole number",
    "int_parsing_size": lambda ctx: "a smaller number",
    "int_type": lambda ctx: "a whole number",
    "less_than": lambda ctx: f"less than {ctx['lt']:g}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']:g}",
    "model_attributes_type": lambda ctx: "a table",
    "model_type": lambda ctx: "a table",
    "string_pattern_mismatch": lambda ctx: LABEL_WORDS,
    "string_too_long": lambda ctx: f"at most {ctx['max_length']} characters",
    "string_too_short": lambda ctx: f"at least {ctx['min_length']} character",
    "string_type": lambda ctx: "text in quotes",
    "too_long": lambda ctx: f"at most {ctx['max_length']} items",
    "too_short": lambda ctx: f"at least {ctx['min_length']} item",
    "tuple_type": lambda ctx: "a list in square brackets",
}
"""The expected value in words, by pydantic's error type; other types keep pydantic's message."""


def load_spec(path: Path, kind: type[N]) -> N:
    """Load a model from a TOML file."""
    return parse_spec(read_text(path), kind, str(path))


def parse_spec(text: str, kind: type[N], file: str) -> N:
    """Load a model from TOML text; errors name `file`."""
    return validate(parse_toml(text, file), kind, text=text, file=file)


def load_json(path: Path, kind: type[N], *, hint: str | None = None) -> N:
    """Load a model from a JSON file, with the same errors as from TOML; the hint names the command that writes it."""
    text = read_text(path, hint=hint)
    data = parse_json(text, str(path))
    if not isinstance(data, dict):
        raise SpecError(path, [Problem(str(path), 1, "file", _shown(data), "a table", hint)])
    return validate(data, kind, text=text, file=str(path), places=locate_json)


def parse_json(text: str, file: str) -> Any:
    """Parse JSON text to plain data; a syntax error becomes a SpecError with its line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        given = getattr(error, "msg", None) or "too deeply nested"
        raise SpecError(
            file, [Problem(file, getattr(error, "lineno", None), "syntax", f"the error {given!r}", "valid JSON")]
        ) from None


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Parse TOML text to plain data; a syntax error becomes a SpecError with its line."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"line (\d+)", str(error))
        line = int(match.group(1)) if match else None
        problem = Problem(file, line, "syntax", f"the error {str(error) or 'too deeply nested'!r}", "valid TOML")
        raise SpecError(file, [problem]) from None


def validate(data: dict[str, Any], kind: type[N], *, text: str, file: str, places: Locator = locate) -> N:
    """Load a model from plain data; raise all its problems at once."""
    try:
        return kind.model_validate_json(json.dumps(data, default=_date))
    except ValidationError as error:
        raise SpecError(file, _problems(error, kind, file=file, places=places(text))) from None


def _date(value: datetime.date | datetime.time) -> dict[str, str]:
    """Wrap a TOML date, because no model has dates and a date must not be accepted as text."""
    return {"date": str(value)}


def read_text(path: Path, *, most: int = MAX_BYTES, hint: str | None = None) -> str:
    """The text of a file of at most `most` bytes; an unreadable file is an InputError. Never waits for a FIFO."""
    hint = hint or "give the path of a file that can be read"
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file", hint=hint)
        data = read_regular(path, most=most + 1, follow=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r}: {reason}", hint=hint) from None
    if len(data) > most:
        raise InputError(f"{path}: larger than {most} bytes", hint="is it the right file?")
    return _decoded(data, str(path))


def refuse_rows(file: str, problems: list[Problem]) -> None:
    """Raise all problems of a table at once, if there are any; the first twenty of very many."""
    if problems:
        raise SpecError(file, sorted(problems, key=lambda problem: problem.line or 0)[:20])


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        given = f"byte 0x{data[error.start]:02x}"
        problem = Problem(file, line, "encoding", given, "UTF-8 text", "save the file as UTF-8")
        raise SpecError(file, [problem]) from None


def load_study(path: Path, catalog: Catalog) -> Study:
    """Load a study and check its names; problems of fields and of names are reported together."""
    text = read_text(path)
    data = parse_toml(text, str(path))
    unknown = _unknown_names(data, _with_files(catalog, path.parent), str(path), locate(text))
    try:
        study = validate(data, Study, text=text, file=str(path))
    except SpecError as error:
        both = [*error.problems, *unknown]
        raise SpecError(path, sorted(both, key=lambda problem: problem.line or 0)) from None
    if unknown:
        raise SpecError(path, unknown)
    return study


def load_cases(path: Path, catalog: Catalog) -> tuple[Study, tuple[Case, ...]]:
    """A study and the cases it expands into."""
    study = load_study(path, catalog)
    catalog = _with_files(catalog, path.parent)
    conflicting = conflicts(study, catalog)
    if conflicting:
        places = locate(read_text(path))
        lines = [line_of((conflict.field,), places) for conflict in conflicting]
        wrong = [
            Problem(str(path), line, conflict.field, conflict.given, conflict.expected, conflict.hint)
            for line, conflict in zip(lines, conflicting, strict=True)
        ]
        raise SpecError(path, wrong)
    return study, expand(study, catalog)


def dump(noun: SpecModel) -> str:
    """TOML text that loads as an equal model."""
    return tomli_w.dumps(_without_none(as_text(noun)))


def _without_none(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_none(value) for key, value in data.items() if value is not None}
    return [_without_none(value) for value in data] if isinstance(data, list) else data


def _with_files(catalog: Catalog, folder: Path) -> Catalog:
    """The catalog, extended by paths of TOML files relative to the folder of the study."""

    def network(name: str) -> Network:
        return load_spec(folder / name, Network) if name.endswith(".toml") else catalog.network(name)

    def cluster(name: str) -> Cluster:
        return catalog.cluster(str(folder / name)) if name.endswith(".toml") else catalog.cluster(name)

    return replace(catalog, network=network, cluster=cluster)


def _unknown_names(data: dict[str, Any], catalog: Catalog, file: str, places: dict[Any, int]) -> list[Problem]:
    """Problems with unknown names in the file, independent of its other problems."""
    lookups = {"networks": catalog.network, "clusters": catalog.cluster, "frameworks": catalog.framework}
    problems: list[Problem] = []
    for field, lookup in lookups.items():
        given = data.get(field)
        for index, name in enumerate(given if isinstance(given, list) else []):
            if not isinstance(name, str) or not name:
                continue
            line, place = line_of((field, index), places), f"{field}[{index}]"
            try:
                lookup(name)
            except UnknownName as error:
                problems.append(Problem(file, line, place, repr(name), f"a known {field[:-1]}", error.hint))
            except SpecError as error:
                problems.extend(error.problems)
            except InputError as error:
                problems.append(
                    Problem(file, line, place, repr(name), "a readable file", f"{error.message}: {error.hint}")
                )
    return problems


def _problems(error: ValidationError, kind: type[SpecModel], *, file: str, places: dict[Any, int]) -> list[Problem]:
    """All problems, in the order of the file."""
    problems = [_problem(detail, kind, file, places) for detail in error.errors() if not _follows(detail)]
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)


def _field_name(place: RankedCase) -> str:
    """The path of a field, such as `strategy[1].bucket`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "file"


def _follows(detail: ErrorDetails) -> bool:
    """Whether a list is only too short because its invalid items, which are reported already, were dropped."""
    given = detail["input"]
    return detail["type"] == "too_short" and isinstance(given, list) and len(given) >= detail["ctx"]["min_length"]


def _problem(detail: ErrorDetails, kind: type[SpecModel], file: str, places: dict[Any, int]) -> Problem:
    loc = tuple(part for part in detail["loc"] if part not in ("[key]", "function-after", "function-before"))
    place = _without_tags(loc, kind)
    if detail["type"].startswith("union_tag"):
        return _wrong_kind(detail, (*place, "kind"), file, places)
    line, field = line_of(place, places), _field_name(place)
    if detail["type"] == "extra_forbidden":
        known = _fields_at(kind, loc[:-1])
        close = nearest(str(loc[-1]), known)
        hint = f"did you mean {close!r}?" if close else f"fields: {', '.join(sorted(known))}"
        return Problem(file, line, field, "an unknown field", "a field of the specification", hint)
    if detail["type"] == "missing":
        return Problem(file, line, field, "nothing", "a value (the field is required)", None)
    return Problem(file, line, field, _shown(detail["input"]), *_expected(detail))


def _wrong_kind(detail: ErrorDetails, place: RankedCase, file: str, places: dict[Any, int]) -> Problem:
    context: Context = detail["ctx"]
    tag = context.get("tag")
    known = re.findall(r"'([^']+)'", context.get("expected_tags", ""))
    close = nearest(str(tag), known) if tag is not None else None
    hint = f"did you mean {close!r}?" if close else f"kinds: {', '.join(known)}" if known else None
    given = "nothing" if tag is None else _shown(tag)
    return Problem(file, line_of(place, places), _field_name(place), given, "a known kind", hint)


def _expected(detail: ErrorDetails) -> tuple[str, str | None]:
    context: Context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, UnitError):
        return cause.expected, cause.hint
    if isinstance(cause, InputError):
        return cause.message, cause.hint
    if isinstance(cause, ValueError):
        return str(cause), None
    if detail["type"] in WORDS:
        return WORDS[detail["type"]](context), None
    message = detail["msg"].removeprefix("Input should be ")
    close = nearest(str(detail["input"]), re.findall(r"'([^']+)'", message))
    return message, f"did you mean {close!r}?" if detail["type"] == "literal_error" and close else None


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, default=str, ensure_ascii=True)
    return text if len(text) <= 80 else text[:77] + "..."


def _without_tags(loc: RankedCase, kind: type[SpecModel]) -> RankedCase:
    """The path as in the file, without the tags that pydantic adds for union members."""
    tags = _tags_of(kind)
    place: RankedCase = ()
    for index, part in enumerate(loc):
        before = loc[index - 1] if index else None
        if isinstance(part, str) and (isinstance(before, int) or before == "input") and part in tags:
            continue
        place = (*place, part)
    return place


@cache
def _tags_of(kind: type[BaseModel]) -> frozenset[str]:
    """Every allowed value of a `kind` field of the model or of a nested model."""
    return frozenset(tag for model in models_of(kind) for tag in _kinds_of(model))


def _kinds_of(model: type[BaseModel]) -> tuple[str, ...]:
    """The allowed values of the `kind` field of a model."""
    field = model.model_fields.get("kind")
    return tuple(str(arg) for arg in get_args(field.annotation)) if field else ()


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The model and all models nested in it, each once."""
    models: dict[type[BaseModel], None] = {}
    _collect(annotation, models)
    return list(models)


def _collect(annotation: Any, models: dict[type[BaseModel], None]) -> None:
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for arg in get_args(annotation):
            _collect(arg, models)
    elif annotation not in models:
        models[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, models)


def _fields_at(kind: type[BaseModel], loc: tuple[str | int, ...]) -> set[str]:
    """Names of the fields that are allowed at a path."""
    models: set[type[BaseModel]] = {kind}
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = {model for model in models if part in _kinds_of(model)}
        models = tagged or _beneath(models, part) or models
    return {name for model in models for name in model.model_fields}


def _beneath(models: set[type[BaseModel]], name: str) -> set[type[BaseModel]]:
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    return {model for field in fields for model in _direct(field.annotation)}


def _direct(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {model for arg in get_args(annotation) for model in _direct(arg)}

"""TOML to spec nouns and back; every wrong field is reported at once, with file, line, given, expected and a hint."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paceline.errors import InputError, Problem, SpecError, UnknownName, nearest
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Noun, as_text
from paceline.spec.lines import line_of, locate
from paceline.spec.network import Network
from paceline.spec.study import Case, Known, Study, expand

__all__ = ["dump", "load_cases", "load_noun", "load_study", "parse_noun", "read_text"]

N = TypeVar("N", bound=Noun)
MAX_BYTES = 4 * 2**20
"""Larger files are refused: no study is that long."""


def load_noun(path: Path, kind: type[N]) -> N:
    """The noun that a TOML file describes."""
    return parse_noun(read_text(path), kind, str(path))


def parse_noun(text: str, kind: type[N], file: str) -> N:
    """The noun that TOML text describes; `file` names it in errors."""
    return validate(parse_toml(text, file), kind, text=text, file=file)


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Plain data of TOML text; a syntax error becomes a SpecError with its line."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"line (\d+)", str(error))
        line = int(match.group(1)) if match else None
        problem = Problem(file, line, "syntax", str(error) or "too deeply nested", "valid TOML", None)
        raise SpecError(file, [problem]) from None


def validate(data: dict[str, Any], kind: type[N], *, text: str, file: str) -> N:
    """The noun that plain data describes, or every problem of it."""
    try:
        return kind.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        places = locate(text)
        problems = [_problem(detail, kind, file, places) for detail in error.errors()]
        raise SpecError(file, _distinct(problems)) from None


def read_text(path: Path) -> str:
    """The file's text, or one clear error."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES} bytes", hint="is it the right file?")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8 text", hint="save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="give the path of a TOML file") from None


def load_study(path: Path, known: Known) -> Study:
    """A study whose every name is known; problems of fields and names are reported together."""
    text = read_text(path)
    study = parse_noun(text, Study, str(path))
    known = _with_files(known, path.parent)
    places = locate(text)
    problems = list(_unknown_names(study, known, str(path), places))
    if problems:
        raise SpecError(path, problems)
    return study


def load_cases(path: Path, known: Known) -> tuple[Study, tuple[Case, ...]]:
    """A study and the cases it expands into."""
    study = load_study(path, known)
    try:
        return study, expand(study, _with_files(known, path.parent))
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None


def dump(noun: Noun) -> str:
    """TOML text that loads back to an equal noun."""
    return tomli_w.dumps(_without_none(as_text(noun)))


def _without_none(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_none(value) for key, value in data.items() if value is not None}
    return [_without_none(value) for value in data] if isinstance(data, list) else data


def _with_files(known: Known, folder: Path) -> Known:
    """The same names, and paths of TOML files relative to the study's folder."""

    def network(name: str) -> Network:
        return load_noun(folder / name, Network) if name.endswith(".toml") else known.network(name)

    def cluster(name: str) -> Cluster:
        return known.cluster(str(folder / name)) if name.endswith(".toml") else known.cluster(name)

    return replace(known, network=network, cluster=cluster)


def _unknown_names(study: Study, known: Known, file: str, places: dict[Any, int]) -> list[Problem]:
    lookups = (("networks", known.network), ("clusters", known.cluster), ("frameworks", known.framework))
    problems = []
    for field, lookup in lookups:
        for index, name in enumerate(getattr(study, field)):
            try:
                lookup(name)
            except UnknownName as error:
                line = line_of((field, index), places)
                kind = f"a known {field[:-1]}"
                problems.append(Problem(file, line, f"{field}[{index}]", repr(name), kind, error.hint))
            except SpecError as error:
                problems.extend(error.problems)
            except InputError as error:
                line = line_of((field, index), places)
                problems.append(Problem(file, line, f"{field}[{index}]", repr(name), error.message, error.hint))
    return problems


def _problem(detail: ErrorDetails, kind: type[Noun], file: str, places: dict[Any, int]) -> Problem:
    loc = tuple(part for part in detail["loc"] if part not in ("[key]", "function-after", "function-before"))
    place = _without_tags(loc, kind)
    line = line_of(place, places)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "file"
    if detail["type"] == "extra_forbidden":
        known = _fields_at(kind, loc[:-1])
        close = nearest(str(loc[-1]), known)
        hint = f"did you mean {close!r}?" if close else f"fields: {', '.join(sorted(known))}"
        return Problem(file, line, field, "an unknown field", "a field of the specification", hint)
    if detail["type"] == "missing":
        return Problem(file, line, field, "nothing", "a value (the field is required)", None)
    return Problem(file, line, field, _shown(detail["input"]), *_expected(detail))


def _expected(detail: ErrorDetails) -> tuple[str, str | None]:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.message, cause.hint
    if isinstance(cause, ValueError):
        return str(cause), None
    message = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    hint = None
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        close = nearest(detail["input"], re.findall(r"'([^']+)'", message))
        hint = f"did you mean {close!r}?" if close else None
    return message, hint


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, default=str, ensure_ascii=True)
    return text if len(text) <= 80 else text[:77] + "..."


def _distinct(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _without_tags(loc: tuple[str | int, ...], kind: type[Noun]) -> tuple[str | int, ...]:
    """The path as the file has it: the tags by which unions name their member left out."""
    place: tuple[str | int, ...] = ()
    for index, part in enumerate(loc):
        before = loc[index - 1] if index else None
        if isinstance(part, str) and (isinstance(before, int) or before == "input") and part in _tags(kind):
            continue
        place = (*place, part)
    return place


def _tags(kind: type[Noun]) -> set[str]:
    return {tag for model in _models(kind, set()) for tag in _kind_of(model)}


def _kind_of(model: type[BaseModel]) -> tuple[str, ...]:
    field = model.model_fields.get("kind")
    return tuple(str(arg) for arg in get_args(field.annotation)) if field else ()


def _models(annotation: Any, seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Every noun that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in seen:
            seen.add(annotation)
            for field in annotation.model_fields.values():
                _models(field.annotation, seen)
    else:
        for arg in get_args(annotation):
            _models(arg, seen)
    return seen


def _fields_at(kind: type[Noun], loc: tuple[str | int, ...]) -> set[str]:
    """Names of the fields that may stand at a place."""
    models: set[type[BaseModel]] = {kind}
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = {model for model in models if part in _kind_of(model)}
        if tagged:
            models = tagged
            continue
        found: set[type[BaseModel]] = set()
        for model in models:
            field = model.model_fields.get(part)
            found |= _direct_models(field.annotation) if field else set()
        models = found or models
    return {name for model in models for name in model.model_fields}


def _direct_models(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    found: set[type[BaseModel]] = set()
    for arg in get_args(annotation):
        found |= _direct_models(arg)
    return found

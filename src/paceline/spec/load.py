"""TOML to spec nouns and back; every wrong field is reported at once, with file, line, given, expected and a hint."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError

from paceline.errors import InputError, Problem, SpecError, UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Noun, as_text
from paceline.spec.lines import line_of, locate
from paceline.spec.network import Network
from paceline.spec.problems import problems
from paceline.spec.study import Case, Known, Study, expand, misfits

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
        return kind.model_validate_json(json.dumps(data, default=_date))
    except ValidationError as error:
        raise SpecError(file, problems(error, kind, text=text, file=file)) from None


def _date(value: datetime.date | datetime.time) -> dict[str, str]:
    """TOML has dates, no noun has: wrapped, so that none passes as text."""
    return {"date": str(value)}


def read_text(path: Path) -> str:
    """The file's text, or one clear error."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file", hint="give the path of a TOML file")
        data = path.read_bytes()[: MAX_BYTES + 1]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r}: {reason}", hint="give the path of a TOML file") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes", hint="is it the right file?")
    return _decoded(data, str(path))


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        given = f"byte 0x{data[error.start]:02x}"
        problem = Problem(file, line, "encoding", given, "UTF-8 text", "save the file as UTF-8")
        raise SpecError(file, [problem]) from None


def load_study(path: Path, known: Known) -> Study:
    """A study whose every name is known; problems of fields and of names are reported together."""
    text = read_text(path)
    data = parse_toml(text, str(path))
    found = _unknown_names(data, _with_files(known, path.parent), str(path), locate(text))
    try:
        study = validate(data, Study, text=text, file=str(path))
    except SpecError as error:
        both = [*error.problems, *found]
        raise SpecError(path, sorted(both, key=lambda problem: problem.line or 0)) from None
    if found:
        raise SpecError(path, found)
    return study


def load_cases(path: Path, known: Known) -> tuple[Study, tuple[Case, ...]]:
    """A study and the cases it expands into."""
    study = load_study(path, known)
    known = _with_files(known, path.parent)
    found = misfits(study, known)
    if found:
        places = locate(read_text(path))
        lines = [line_of((misfit.field,), places) for misfit in found]
        wrong = [
            Problem(str(path), line, misfit.field, misfit.given, misfit.expected, misfit.hint)
            for line, misfit in zip(lines, found, strict=True)
        ]
        raise SpecError(path, wrong)
    return study, expand(study, known)


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


def _unknown_names(data: dict[str, Any], known: Known, file: str, places: dict[Any, int]) -> list[Problem]:
    """Names in the file that mean nothing, whatever else is wrong with it."""
    lookups = {"networks": known.network, "clusters": known.cluster, "frameworks": known.framework}
    found: list[Problem] = []
    for field, lookup in lookups.items():
        given = data.get(field)
        for index, name in enumerate(given if isinstance(given, list) else []):
            if not isinstance(name, str) or not name:
                continue
            line, place = line_of((field, index), places), f"{field}[{index}]"
            try:
                lookup(name)
            except UnknownName as error:
                found.append(Problem(file, line, place, repr(name), f"a known {field[:-1]}", error.hint))
            except SpecError as error:
                found.extend(error.problems)
            except InputError as error:
                found.append(
                    Problem(file, line, place, repr(name), "a readable file", f"{error.message}: {error.hint}")
                )
    return found

"""What is wrong with a file, in words: pydantic's findings become problems with line, given, expected and hint."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paceline.errors import InputError, Problem, UnitError, nearest
from paceline.spec.fields import LABEL_WORDS, Noun
from paceline.spec.lines import line_of, locate
from paceline.spec.schema import fields_at, tags_of

__all__ = ["field_name", "problems"]

Place = tuple[str | int, ...]
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
"""What was expected, by pydantic's type of error; other types keep pydantic's message."""


def problems(error: ValidationError, kind: type[Noun], *, text: str, file: str) -> list[Problem]:
    """Every problem, in the order of the file."""
    places = locate(text)
    found = [_problem(detail, kind, file, places) for detail in error.errors() if not _follows(detail)]
    return sorted(dict.fromkeys(found), key=lambda problem: problem.line or 0)


def field_name(place: Place) -> str:
    """The path of a field as people write it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "file"


def _follows(detail: ErrorDetails) -> bool:
    """A list is called too short because its items are wrong, which is reported already."""
    given = detail["input"]
    return detail["type"] == "too_short" and isinstance(given, list) and len(given) >= detail["ctx"]["min_length"]


def _problem(detail: ErrorDetails, kind: type[Noun], file: str, places: dict[Any, int]) -> Problem:
    loc = tuple(part for part in detail["loc"] if part not in ("[key]", "function-after", "function-before"))
    place = _without_tags(loc, kind)
    if detail["type"].startswith("union_tag"):
        return _wrong_kind(detail, (*place, "kind"), file, places)
    line, field = line_of(place, places), field_name(place)
    if detail["type"] == "extra_forbidden":
        known = fields_at(kind, loc[:-1])
        close = nearest(str(loc[-1]), known)
        hint = f"did you mean {close!r}?" if close else f"fields: {', '.join(sorted(known))}"
        return Problem(file, line, field, "an unknown field", "a field of the specification", hint)
    if detail["type"] == "missing":
        return Problem(file, line, field, "nothing", "a value (the field is required)", None)
    return Problem(file, line, field, _shown(detail["input"]), *_expected(detail))


def _wrong_kind(detail: ErrorDetails, place: Place, file: str, places: dict[Any, int]) -> Problem:
    context: Context = detail["ctx"]
    tag = context.get("tag")
    known = re.findall(r"'([^']+)'", context.get("expected_tags", ""))
    close = nearest(str(tag), known) if tag is not None else None
    hint = f"did you mean {close!r}?" if close else f"kinds: {', '.join(known)}" if known else None
    given = "nothing" if tag is None else _shown(tag)
    return Problem(file, line_of(place, places), field_name(place), given, "a known kind", hint)


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


def _without_tags(loc: Place, kind: type[Noun]) -> Place:
    """The path as the file has it: the tags by which unions name their member left out."""
    tags = tags_of(kind)
    place: Place = ()
    for index, part in enumerate(loc):
        before = loc[index - 1] if index else None
        if isinstance(part, str) and (isinstance(before, int) or before == "input") and part in tags:
            continue
        place = (*place, part)
    return place

"""Render a pydantic model as a section of Markdown: its docstring, and its fields with type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.units import BANDWIDTH, BYTES, FLOPS, PRICE, SECONDS, Dimension

DIMENSIONS = {item.example: item for item in (SECONDS, BYTES, BANDWIDTH, FLOPS, PRICE)}
LIMITS = {Ge: ("at least", "ge"), Gt: ("more than", "gt"), Le: ("at most", "le"), Lt: ("less than", "lt")}
LARGEST = 2**31 - 1
"""The default upper limit of every count, which the reference leaves out."""
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def model_section(model: type[BaseModel]) -> list[str]:
    """A heading, the docstring of the model, and a table of its fields."""
    meanings = meanings_of(model)
    rows = [_row(name, field, meanings.get(name, "")) for name, field in model.model_fields.items()]
    head = [f"## {model.__name__}", "", inspect.cleandoc(model.__doc__ or ""), ""]
    return [*head, "| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """The string beneath each field. The models do not read their own source, since every command would wait for it."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind.__module__.startswith("pydantic"):
            continue
        (body,) = (
            node.body
            for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            if isinstance(node, ast.ClassDef)
        )
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                known = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and text.value.value
                found[field.target.id] = inspect.cleandoc(str(known)) if known else ""
    return found


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    dimension = _dimension(field.annotation, field)
    kind = f"{dimension.name}, such as `{dimension.example}`" if dimension else _words(field.annotation)
    limits = "" if dimension else _limits(field.metadata)
    return f"| `{name}` | {kind}{limits} | {_default(field, dimension)} | {' '.join(meaning.split())} |"


def _dimension(annotation: Any, field: FieldInfo | None = None) -> Dimension | None:
    """The dimension of a quantity, identified by the example in its type's metadata."""
    examples = list(field.examples or []) if field else []
    for item in getattr(annotation, "__metadata__", ()):
        examples += list(getattr(item, "examples", None) or [])
    if not examples and get_origin(annotation) in (Union, types.UnionType):
        return next((dimension for arg in get_args(annotation) if (dimension := _dimension(arg))), None)
    return next((DIMENSIONS[example] for example in examples if example in DIMENSIONS), None)


def _words(annotation: Any) -> str:
    dimension = _dimension(annotation)
    if dimension is not None:
        return f"{dimension.name}, such as `{dimension.example}`"
    if annotation in PLAIN:
        return PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _composed(get_origin(annotation), get_args(annotation))


def _composed(origin: Any, args: tuple[Any, ...]) -> str:
    """The description of a type that is composed of other types."""
    if origin is Annotated:
        return _words(args[0]) + _limits(args[1:])
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is tuple:
        inner = _words(args[0])
        return f"list of {inner}" if args[-1] is Ellipsis else f"{len(args)} values: {inner}"
    if origin is dict:
        return f"table: {_words(args[1])}, by {_words(args[0])}"
    kinds = [arg for arg in args if arg is not type(None)]
    return " or ".join(_words(arg) for arg in kinds)


def _limits(metadata: Any) -> str:
    """The limits of a number as text."""
    flat = [part for item in metadata for part in getattr(item, "metadata", [item]) if part != Le(LARGEST)]
    limits = [
        f"{LIMITS[type(item)][0]} {getattr(item, LIMITS[type(item)][1])}" for item in flat if type(item) in LIMITS
    ]
    return f", {', '.join(limits)}" if limits else ""


def _default(field: FieldInfo, dimension: Dimension | None) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}, ()):
        return ""
    if isinstance(value, BaseModel):
        return "its defaults"
    if dimension is not None and isinstance(value, float):
        return f"`{dimension.exact(value)}`"
    if isinstance(value, tuple):
        return "one, its defaults" if isinstance(value[0], BaseModel) else f"`{list(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"

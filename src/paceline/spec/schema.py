"""Which fields and kinds a noun allows where: read from the nouns themselves, for hints and reference pages."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

__all__ = ["fields_at", "kind_of", "models_of", "tags_of"]


@cache
def tags_of(kind: type[BaseModel]) -> frozenset[str]:
    """Every value of a `kind` field that the noun or a noun inside it allows."""
    return frozenset(tag for model in models_of(kind) for tag in kind_of(model))


def kind_of(model: type[BaseModel]) -> tuple[str, ...]:
    """The values of its `kind` field."""
    field = model.model_fields.get("kind")
    return tuple(str(arg) for arg in get_args(field.annotation)) if field else ()


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Every noun that a type mentions, itself first, each once."""
    found: dict[type[BaseModel], None] = {}
    _collect(annotation, found)
    return list(found)


def _collect(annotation: Any, found: dict[type[BaseModel], None]) -> None:
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for arg in get_args(annotation):
            _collect(arg, found)
    elif annotation not in found:
        found[annotation] = None
        for field in annotation.model_fields.values():
            _collect(field.annotation, found)


def fields_at(kind: type[BaseModel], loc: tuple[str | int, ...]) -> set[str]:
    """Names of the fields that may stand at a place."""
    models: set[type[BaseModel]] = {kind}
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = {model for model in models if part in kind_of(model)}
        models = tagged or _beneath(models, part) or models
    return {name for model in models for name in model.model_fields}


def _beneath(models: set[type[BaseModel]], name: str) -> set[type[BaseModel]]:
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    return {found for field in fields for found in _direct(field.annotation)}


def _direct(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for arg in get_args(annotation) for found in _direct(arg)}

"""Field types of spec models: quantities with units, counts, names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SerializationInfo

from paceline.units import BANDWIDTH, BYTES, FLOPS, POWER, PRICE, SECONDS, Dimension

__all__ = [
    "Bandwidth",
    "Bytes",
    "Count",
    "Flops",
    "Label",
    "Name",
    "NotNegative",
    "Pair",
    "Price",
    "Seconds",
    "Share",
    "SpecModel",
    "Watts",
    "as_text",
]

TEXT = {"quantities": "text"}
"""The serialization context in which quantities are written with their units."""


class SpecModel(BaseModel):
    """Base class of spec models: frozen, strict types, no unknown fields; the string beneath a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _quantity(dimension: Dimension) -> tuple[BeforeValidator, PlainSerializer, Any]:
    def write(value: float, info: SerializationInfo) -> float | str:
        return dimension.exact(value) if info.context == TEXT else value

    return BeforeValidator(dimension.parse), PlainSerializer(write), Field(examples=[dimension.example])


_SECONDS, _BYTES, _RATE, _FLOPS, _PRICE, _POWER = (
    _quantity(d) for d in (SECONDS, BYTES, BANDWIDTH, FLOPS, PRICE, POWER)
)

Seconds = Annotated[float, *_SECONDS, Field(ge=0, le=1e9)]
Bytes = Annotated[float, *_BYTES, Field(ge=0, le=1e18)]
Bandwidth = Annotated[float, *_RATE, Field(ge=1e-3, le=1e18)]
Flops = Annotated[float, *_FLOPS, Field(ge=1e-3, le=1e24)]
Price = Annotated[float, *_PRICE, Field(ge=0, le=1e9)]
Watts = Annotated[float, *_POWER, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
LABEL_WORDS = "letters, digits, dots, dashes and underscores, at most 100, the first a letter or digit"
"""The syntax of a label, for error messages; labels become directory names."""
Pair = tuple[int, int]


def as_text(noun: SpecModel) -> dict[str, Any]:
    """The model as plain data for a text file: quantities with units, without default values, with kinds."""
    data: dict[str, Any] = noun.model_dump(mode="json", context=TEXT, exclude_defaults=True)
    _keep_kinds(noun, data)
    return data


def _keep_kinds(value: Any, data: Any) -> None:
    """Add every `kind`: it selects the member of a union, so it is written although it has its default value."""
    if isinstance(value, SpecModel):
        if "kind" in type(value).model_fields:
            data["kind"] = dict(value)["kind"]
        for name in data:
            _keep_kinds(getattr(value, name), data[name])
    elif isinstance(value, tuple):
        for item, plain in zip(value, data, strict=True):
            _keep_kinds(item, plain)

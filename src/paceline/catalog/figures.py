"""Figures of the catalog: a quantity with its unit and source."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import field_validator

from paceline.errors import UnitError
from paceline.spec.cluster import ReachShare
from paceline.spec.fields import Name, SpecModel

__all__ = ["Figure", "ShareFigure"]

Q = TypeVar("Q")


class Figure(SpecModel, Generic[Q]):
    """A quantity with a unit and a source, both required."""

    value: Q
    source: Name
    """Title and year of the document, or the measurement, that states it."""
    note: str = ""

    @field_validator("value", mode="before")
    @classmethod
    def _with_unit(cls, given: Any) -> Any:
        if not isinstance(given, str):
            raise UnitError(given, expected="a quantity with its unit, such as '900 GB/s'")
        return given


class ShareFigure(SpecModel):
    """A share between 0 and 1 with a source, which is required."""

    value: ReachShare
    source: Name
    """Title and year of the document, or the measurement, that states it."""
    note: str = ""

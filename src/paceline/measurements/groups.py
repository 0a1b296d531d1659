"""Choose launches by conditions such as `study=demo,ranks=2`."""

from __future__ import annotations

from paceline.errors import InputError, UnknownName
from paceline.measurements.sql import connect
from paceline.measurements.store import Store

__all__ = ["FIELDS", "select"]

FIELDS = (
    "study",
    "campaign",
    "network",
    "framework",
    "strategy",
    "cluster",
    "launcher",
    "ranks",
    "batch",
    "input",
    "scaling",
    "case_id",
)


def select(store: Store, conditions: str) -> list[float]:
    """Samples per second of every successful launch that fits all conditions."""
    pairs = [_pair(text) for text in conditions.split(",") if text.strip()]
    if not pairs:
        raise InputError("no condition given", hint="write field=value, for instance study=demo,ranks=2")
    where = " AND ".join(f"CAST({field} AS VARCHAR) = ?" for field, _ in pairs)
    with connect(store) as connection:
        rows = connection.execute(
            f"SELECT samples_per_s FROM launches WHERE {where} ORDER BY id", [value for _, value in pairs]
        ).fetchall()
    return [float(row[0]) for row in rows]


def _pair(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise InputError(f"{text!r} is not a condition", hint="write field=value")
    if field.strip() not in FIELDS:
        raise UnknownName("field", field.strip(), FIELDS)
    return field.strip(), value.strip()

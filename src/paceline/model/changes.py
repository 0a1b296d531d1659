"""Changes of a question: `link=100gbe`, `link.bandwidth=100Gb/s`, `strategy.bucket=64MiB`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from paceline import catalog
from paceline.catalog.devices import device_by_alias
from paceline.errors import InputError, UnitError, UnknownName
from paceline.model.question import Question
from paceline.spec.cluster import Device, Host, Link
from paceline.spec.fields import SpecModel
from paceline.spec.strategy import Strategy

__all__ = ["CHANGEABLE", "changed", "parse_changes"]

N = TypeVar("N", bound=SpecModel)

CHANGEABLE = {
    "link": "the link between hosts: a name of the catalog, or bandwidth, latency",
    "inside": "the link inside hosts: a name of the catalog, or bandwidth, latency",
    "device": "every device: a name of the catalog, or memory, memory_bandwidth, launch_overhead, price, quota",
    "host": "every host: nics, disk",
    "strategy": "aggregation, algorithm, overlap, bucket, precision, compression, accumulate, servers, ...",
    "batch": "samples per device",
    "framework": "framework and mode",
}
"""Parts of a question that can be changed, and their fields."""


FIELDS: dict[str, type[SpecModel]] = {"link": Link, "inside": Link, "device": Device}
"""Parts whose fields have no short names."""


def parse_changes(given: tuple[str, ...]) -> dict[str, str]:
    """`key=value` texts as a table."""
    pairs = [text.partition("=") for text in given]
    wrong = next((key for key, sign, _ in pairs if not sign), None)
    if wrong is not None:
        raise InputError(f"change {wrong}: expected key=value", hint="for example link.bandwidth=100Gb/s")
    return {key.strip(): value.strip() for key, _, value in pairs}


def changed(question: Question, changes: dict[str, str]) -> Question:
    """The question with every change applied."""
    for key, value in changes.items():
        part, _, field = _full(key).partition(".")
        if part not in CHANGEABLE:
            whole = [f"{name}.{part}" for name, noun in FIELDS.items() if part in noun.model_fields]
            known = [*CHANGEABLE, *Strategy.model_fields]
            raise UnknownName(
                "part of a question",
                part,
                [] if whole else known,
                otherwise=f"say {' or '.join(whole)}" if whole else "",
            )
        question = _changed(question, part, field, value=value)
    return question


def _full(key: str) -> str:
    """`algorithm` means `strategy.algorithm`, and `host.link.latency` means `link.latency`."""
    if key in Strategy.model_fields and key not in CHANGEABLE:
        return f"strategy.{key}"
    if key in ("nics", "disk"):
        return f"host.{key}"
    plain = key.removeprefix("host.")
    return plain if plain.partition(".")[0] in ("link", "inside") else key


def _changed(question: Question, part: str, field: str, *, value: str) -> Question:
    if part == "batch":
        if not (value.isdecimal() and len(value) <= 10 and 1 <= int(value) < 2**31):
            raise InputError(f"batch={value[:40]}: expected a whole number from 1 to {2**31 - 1}")
        return replace(question, batch=int(value), assumed=False)
    if part == "framework":
        return replace(question, framework=catalog.framework(value))
    if part == "strategy":
        return replace(question, strategy=_with(question.strategy, part, field, value=value))
    change = _changed_host if field or part == "host" else _replaced
    hosts = tuple(change(host, part, field, value=value) for host in question.cluster.hosts)
    return replace(question, cluster=question.cluster.model_copy(update={"hosts": hosts}))


def _changed_host(host: Host, part: str, field: str, *, value: str) -> Host:
    if part == "host":
        return _with(host, part, field, value=value)
    if part == "device":
        return host.model_copy(
            update={"devices": tuple(_with(device, part, field, value=value) for device in host.devices)}
        )
    return host.model_copy(update={part: _with(getattr(host, part), part, field, value=value)})


def _replaced(host: Host, part: str, field: str, *, value: str) -> Host:
    """The host with another link, or with as many of another device, of the catalog."""
    if part == "device":
        device = catalog.device(device_by_alias(value) or value)
        return host.model_copy(update={"devices": (device,) * len(host.devices)})
    return host.model_copy(update={part: catalog.link(value)})


def _with(noun: N, part: str, field: str, *, value: str) -> N:
    """The noun with one field read from text and checked like a file's."""
    fields = type(noun).model_fields
    if field not in fields:
        raise UnknownName(f"field of {type(noun).__name__.lower()}", field, fields)
    plain: dict[str, Any] = json.loads(noun.model_dump_json())
    for literal in (value, _literal(value)):
        plain[field] = literal
        try:
            return type(noun).model_validate_json(json.dumps(plain))
        except ValidationError as error:
            problem = error
        if _literal(value) != 0 and isinstance(problem.errors()[0].get("ctx", {}).get("error"), UnitError):
            break  # a number without a unit would be in SI units, which is rarely meant
    message = problem.errors()[0]["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    raise InputError(f"{part}.{field}={value}: {message}") from None


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

"""Begin a campaign, or go on with one that was interrupted; one process at a time works on a campaign."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

from paceline.errors import InputError
from paceline.measurements.store import Store
from paceline.spec.load import dump
from paceline.spec.study import Case, Study

__all__ = ["open_campaign"]


@contextlib.contextmanager
def open_campaign(study: Study, cases: tuple[Case, ...], store: Store, *, resume: bool, launcher: str) -> Iterator[str]:
    """The id of a new campaign, or of the newest one that asked for the same in the same place; held until it ends."""
    digest = _digest(study, cases)
    stored = store.read_campaigns(study.name)
    found = [item for item in stored if item["digest"] == digest and item.get("launcher", launcher) == launcher]
    if resume and found:
        campaign = str(found[-1]["campaign"])
    else:
        now = datetime.now(UTC)
        campaign = f"{study.name}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        document = {
            "campaign": campaign,
            "study": study.name,
            "title": study.title,
            "digest": digest,
            "started_at": now.isoformat(timespec="milliseconds"),
            "launcher": launcher,
            "text": dump(study),
            "cases": [case.id for case in cases],
        }
        store.write_campaign(campaign, document)
    with _held(store, campaign):
        yield campaign


def _digest(study: Study, cases: tuple[Case, ...]) -> str:
    protocol = study.protocol.model_dump(mode="json", exclude={"budget"})
    text = json.dumps([sorted(case.id for case in cases), protocol], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _held(store: Store, campaign: str) -> Iterator[None]:
    folder = store.root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{campaign}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or leave out --resume to begin a new campaign"
            raise InputError(f"campaign {campaign} is being run by another process", hint=hint) from None
        yield

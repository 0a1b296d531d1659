"""How a rank that is started again finds its group after a split: a file beside the job's roster says who is where.

The first rank of the group that splits writes it, and removes it when all ranks are one group again. Each group keeps a
roster of its own. A rank whose group still runs joins it; one whose group died with it begins the group anew, with the
parameters that are common now and with fresh samples: the syncer hands out again what the dead group had taken.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.runtime.members.meet import Launched
from paceline.runtime.syncer.between import Membership

__all__ = ["GroupSeats", "forget_groups", "group_roster", "note_groups", "seats_of"]


@dataclass(frozen=True)
class GroupSeats:
    """One group as the file says it; the secret is not in it."""

    group: str
    addresses: dict[str, str]
    """Of each of its ranks, by the number that the launcher gave."""
    meet: tuple[str, int]
    places: tuple[tuple[str, int], ...]
    """Of the syncer's shards."""
    local_steps: int
    share: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> GroupSeats:
        """From JSON data."""
        places = tuple((str(host), int(port)) for host, port in plain["places"])
        return cls(**{**plain, "meet": (str(plain["meet"][0]), int(plain["meet"][1])), "places": places})

    def membership(self, secret: bytes) -> Membership:
        """The same for a process that holds the secret."""
        return Membership(self.group, self.places, secret, self.local_steps, self.share)


def group_roster(roster: Path | None, group: str) -> Path | None:
    """Where a group leaves word for its late ranks."""
    return roster.with_name(f"{roster.stem}-{group}.json") if roster is not None else None


def note_groups(roster: Path | None, groups: Sequence[GroupSeats]) -> None:
    """Write who is where, if the job has a folder for it."""
    path = _file(roster)
    if path is not None and path.parent.is_dir():
        for old in path.parent.glob(f"{roster.stem}-*.json") if roster is not None else ():
            old.unlink(missing_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps([asdict(group) for group in groups]), encoding="utf-8")
        temporary.rename(path)


def forget_groups(roster: Path | None) -> None:
    """All ranks are one group again."""
    path = _file(roster)
    if path is not None:
        path.unlink(missing_ok=True)


def seats_of(start: Launched) -> GroupSeats | None:
    """The group of a rank that was started again; None if the ranks are one group, or this is the first start."""
    path = _file(start.roster)
    if not start.late or path is None:
        return None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        groups = [GroupSeats.of(plain) for plain in json.loads(path.read_text(encoding="utf-8"))]
        return next((group for group in groups if str(start.rank) in group.addresses), None)
    return None


def _file(roster: Path | None) -> Path | None:
    return roster.with_name("groups.json") if roster is not None else None

"""What can be learnt about peers without following them: do they answer, can they be reached, do they lead."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

from paceline.runtime.members.channel import Channel, Message, call
from paceline.runtime.members.view import Peer, View

__all__ = [
    "answers",
    "asked_who",
    "close_roster",
    "greeted",
    "is_closed",
    "may_be_alive",
    "read_roster",
    "write_roster",
]

OVER = "over"
"""In place of a roster: nobody is left to be found."""
REACH = 0.7
"""Seconds after which a host that did not even refuse a connection is taken for cut off."""
log = logging.getLogger("paceline.runtime")


def answers(place: tuple[str, int], secret: bytes) -> bool:
    """Whether somebody of this job listens there."""
    with contextlib.suppress(OSError, KeyError):
        call(*place, secret, timeout=0.5).close()
        return True
    return False


def may_be_alive(peer: Peer, secret: bytes) -> bool:
    """Whether a lost peer may go on without us.

    A process that is dead refuses the connection, one that is stopped leaves it open without a word and commits nothing
    when it wakes up. One that answers is alive, and a host from which nothing at all comes may be on the far side of a
    cut link.
    """
    try:
        call(peer.address, peer.port, secret, timeout=REACH).close()
    except (ConnectionError, KeyError):
        return False
    except OSError:
        return True
    return True


def asked_who(peer: Peer, secret: bytes) -> tuple[int, str] | None:
    """How many a peer leads, and its name; None if it leads nobody or does not say. Refuses connections if dead."""
    try:
        with contextlib.closing(call(peer.address, peer.port, secret, timeout=1.0)) as channel:
            channel.settle(1.0)
            channel.send({"kind": "who"})
            reply = channel.receive()
            return (int(reply["members"]), str(reply["id"])) if reply["leads"] else None
    except ConnectionRefusedError:
        raise
    except (OSError, KeyError):
        return None


def greeted(place: tuple[str, int], secret: bytes, peer: Peer, *, seen: int) -> tuple[Message | None, Channel | None]:
    """What a place answers to a peer that wants to follow, and the channel to it if it leads."""
    try:
        channel = call(*place, secret, timeout=1.0)
    except (OSError, KeyError):
        return None, None
    reply: Message | None = None
    with contextlib.suppress(OSError):
        channel.settle(2.0)
        channel.send({"kind": "hello", "peer": asdict(peer), "view": seen})
        reply = channel.receive()
        channel.settle(None)
        if reply.get("kind") == "welcome":
            return reply, channel
    channel.close()
    return reply, None


def read_roster(path: Path | None) -> list[tuple[str, int]]:
    """Where the members of the last view were."""
    if path is None or not path.exists():
        return []
    with contextlib.suppress(json.JSONDecodeError, ValueError, TypeError):
        return [(str(address), int(port)) for address, port in json.loads(path.read_text(encoding="utf-8"))]
    return []


def is_closed(path: Path | None) -> bool:
    """Whether the group was told that training is over."""
    return path is not None and path.exists() and path.read_text(encoding="utf-8") == json.dumps(OVER)


def write_roster(path: Path | None, view: View) -> None:
    """Leave word for those who come later, if there is a file for it."""
    _write(path, [[peer.address, peer.port] for peer in view.peers])


def close_roster(path: Path | None) -> None:
    """Leave word that training is over."""
    _write(path, OVER)


def _write(path: Path | None, content: object) -> None:
    """Without it training goes on, as it must: only those who come late need it."""
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.rename(path)
    except OSError as error:
        log.warning("%s cannot be written, so who comes late may not find the others: %s", path, error)

"""What can be learnt of peers without following them: whether they answer, whether they lead, and whom they follow."""

from __future__ import annotations

import contextlib

from paceline.runtime.members.channel import Channel, Endpoint, Login, open_channel
from paceline.runtime.members.view import Peer
from paceline.runtime.protocol import messages

__all__ = ["answers", "ask_leadership", "ask_to_follow", "may_be_alive"]

ANSWERS_TIMEOUT = 0.5
"""Seconds for a member of a running job to accept; asked of each endpoint of a roster, so it must be short."""
REACH_TIMEOUT = 0.7
"""Seconds after which a host that did not even refuse a connection counts as cut off. A network that works refuses
within a round trip; below the heartbeat timeout, so that the verdict is there when the next view is due."""
QUERY_TIMEOUT = 1.0
"""Seconds to connect, and for a one-line answer: far above a round trip, and short enough to ask all lost peers."""
WELCOME_TIMEOUT = 2.0
"""Seconds for a leader's answer: its one thread may be busy with sending to members that are about to fail."""


def answers(endpoint: Endpoint, login: Login) -> bool:
    """Whether a process of this job listens there."""
    with contextlib.suppress(OSError):
        open_channel(*endpoint, login, timeout=ANSWERS_TIMEOUT).close()
        return True
    return False


def may_be_alive(peer: Peer, login: Login) -> bool:
    """Whether a lost peer may go on without us.

    A process that is dead refuses the connection. One that is suspended accepts it without a word, and commits nothing
    when it wakes up. One that answers is alive, and a host from which nothing at all comes may be on the far side of a
    cut link.
    """
    try:
        open_channel(peer.address, peer.port, login, timeout=REACH_TIMEOUT).close()
    except ConnectionError:
        return False
    except OSError:
        return True
    return True


def ask_leadership(peer: Peer, login: Login) -> tuple[int, str]:
    """How many a peer leads, and its id; (0, "") if it leads nobody or does not say. Refuses connections if dead."""
    try:
        with contextlib.closing(open_channel(peer.address, peer.port, login, timeout=QUERY_TIMEOUT)) as channel:
            channel.set_timeout(QUERY_TIMEOUT)
            channel.send(messages.LeadershipQuery())
            reply = channel.receive(messages.LeadershipReply)
            return (reply.members, reply.id) if reply.leads else (0, "")
    except ConnectionRefusedError:
        raise
    except OSError:
        return (0, "")


def ask_to_follow(
    endpoint: Endpoint, login: Login, peer: Peer, *, seen: int
) -> tuple[messages.Message | None, Channel | None]:
    """What the process at an endpoint answers to a peer that wants to follow, and the channel to it if it leads."""
    try:
        channel = open_channel(*endpoint, login, timeout=QUERY_TIMEOUT)
    except OSError:
        return None, None
    reply: messages.Message | None = None
    with contextlib.suppress(OSError):
        channel.set_timeout(WELCOME_TIMEOUT)
        channel.send(messages.Hello(peer, seen))
        reply = channel.receive(messages.Welcome, messages.Redirect, messages.WaitForSuccessor)
        channel.set_timeout(None)
        if isinstance(reply, messages.Welcome):
            return reply, channel
    channel.close()
    return reply, None

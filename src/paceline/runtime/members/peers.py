"""Probes of peers: whether they answer, whether they lead, and which leader they follow."""

from __future__ import annotations

import contextlib
import time

from paceline.runtime.members.channel import Channel, Endpoint, Login, open_channel
from paceline.runtime.members.link import SilentConnection
from paceline.runtime.members.view import Peer
from paceline.runtime.protocol import messages

__all__ = ["answers", "ask_leadership", "ask_to_follow", "is_dead", "open_lifeline"]

ANSWERS_TIMEOUT = 0.5
"""Seconds for a member of a running job to accept; asked of each endpoint of a roster, so it must be short."""
CLOSING, CLOSING_TRIES = 0.02, 5
"""Seconds between two calls of a process that may be about to end, and their number."""
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


def is_dead(peer: Peer, login: Login) -> bool:
    """Whether a lost peer has ended for certain: its host refuses connections to its port, or another has the port.

    A rank that is started again may listen where the one before it did. A peer that answers is alive. One that accepts
    without a message may be suspended, and a host from which nothing comes may be on the far side of a cut link:
    neither is dead.
    """
    for _ in range(CLOSING_TRIES):
        try:
            with contextlib.closing(open_channel(*peer.endpoint, login, timeout=REACH_TIMEOUT)) as channel:
                return channel.peer != peer.id
        except ConnectionRefusedError:
            return True
        except ConnectionError:  # a process that ends closes its connections one after the other
            time.sleep(CLOSING)
        except OSError:
            return False
    return False


def ask_leadership(endpoint: Endpoint, login: Login, peer: Peer) -> messages.LeadershipReply | None:
    """What is said there of who leads, to a leader that asks; None if nothing is. Refuses connections if dead."""
    try:
        with contextlib.closing(open_channel(*endpoint, login, timeout=QUERY_TIMEOUT)) as channel:
            channel.set_timeout(QUERY_TIMEOUT)
            channel.send(messages.LeadershipQuery(peer))
            return channel.receive(messages.LeadershipReply)
    except ConnectionRefusedError:
        raise
    except OSError:
        return None


def ask_to_follow(
    endpoint: Endpoint, login: Login, hello: messages.Hello
) -> tuple[messages.Message | None, Channel | None]:
    """What the process at an endpoint answers to a peer that wants to follow, and the channel to it if it leads."""
    try:
        channel = open_channel(*endpoint, login, timeout=QUERY_TIMEOUT)
    except OSError:
        return None, None
    reply: messages.Message | None = None
    with contextlib.suppress(OSError):
        channel.set_timeout(WELCOME_TIMEOUT)
        channel.send(hello, filled=True)
        reply = channel.receive(messages.Welcome, messages.Redirect, messages.WaitForSuccessor)
        channel.set_timeout(None)
        if isinstance(reply, messages.Welcome):
            return reply, channel
    # The leader may hear of this process only now: it has to know that the process lives and follows it not.
    with contextlib.suppress(OSError):
        channel.send(messages.Farewell())
    channel.close()
    return reply, None


def open_lifeline(endpoint: Endpoint, login: Login) -> SilentConnection | None:
    """A second connection to the leader that was followed just now; None if it cannot be had."""
    with contextlib.suppress(OSError):
        channel = open_channel(*endpoint, login, timeout=QUERY_TIMEOUT)
        channel.send(messages.Lifeline())
        return SilentConnection(channel)
    return None

"""Probes of peers: whether they answer, whether they have ended, and which leader they follow."""

from __future__ import annotations

import contextlib
import time

from paceline.runtime.members.channel import Channel, Endpoint, Login, open_channel
from paceline.runtime.members.link import SilentConnection
from paceline.runtime.members.view import Peer
from paceline.runtime.protocol import messages

__all__ = ["answers", "ask_leadership", "ask_to_follow", "is_dead", "open_lifeline"]

ANSWERS_TIMEOUT = 0.5
"""Seconds for a member of a running job to accept; short, because each endpoint of a roster is probed."""
CLOSING, CLOSING_TRIES = 0.02, 5
"""Seconds between two probes of a process that may be ending, and number of probes."""
REACH_TIMEOUT = 0.7
"""Seconds after which a host that neither accepts nor refuses a connection counts as unreachable. A refusal takes one
round trip. Below the heartbeat timeout, so that the result is known when the next view is due."""
QUERY_TIMEOUT = 1.0
"""Seconds to connect and for a short answer: far above a round trip, and short enough to ask all lost peers."""
WELCOME_TIMEOUT = 2.0
"""Seconds for a leader's answer: its only deciding thread may be busy sending to members that fail."""


def answers(endpoint: Endpoint, login: Login) -> bool:
    """Whether a process of this job listens at the endpoint."""
    with contextlib.suppress(OSError):
        open_channel(*endpoint, login, timeout=ANSWERS_TIMEOUT).close()
        return True
    return False


def is_dead(peer: Peer, login: Login) -> bool:
    """Whether a lost peer has certainly ended: its host refuses connections to its port, or another process has the
    port.

    A restarted rank may use the port of its predecessor. A peer that answers is alive. A peer that accepts and does not
    answer may be suspended, and a host that does not respond may be behind a failed link: neither counts as dead.
    """
    for _ in range(CLOSING_TRIES):
        try:
            with contextlib.closing(open_channel(*peer.endpoint, login, timeout=REACH_TIMEOUT)) as channel:
                return channel.peer != peer.id
        except ConnectionRefusedError:
            return True
        except ConnectionError:  # an ending process closes its connections one after the other
            time.sleep(CLOSING)
        except OSError:
            return False
    return False


def ask_leadership(endpoint: Endpoint, login: Login, peer: Peer) -> messages.LeadershipReply | None:
    """Ask a peer, as a leader, which leader it follows; None without an answer. Raises ConnectionRefusedError if it is
    dead."""
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
    """Ask the process at an endpoint to be followed: its answer, and the open channel if it leads."""
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
    # The request may still arrive: tell the leader that this process is alive and does not follow it.
    with contextlib.suppress(OSError):
        channel.send(messages.Farewell())
    channel.close()
    return reply, None


def open_lifeline(endpoint: Endpoint, login: Login) -> SilentConnection | None:
    """A second connection to the leader that this member has just followed; None if it fails."""
    with contextlib.suppress(OSError):
        channel = open_channel(*endpoint, login, timeout=QUERY_TIMEOUT)
        channel.send(messages.Lifeline())
        return SilentConnection(channel)
    return None

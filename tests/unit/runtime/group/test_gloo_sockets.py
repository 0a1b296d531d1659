"""Listeners of Gloo, where a kernel refuses what a privileged process may do."""

import logging
import socket

import pytest

from paceline.runtime.group import gloo_sockets


class Forbidden(socket.socket):
    """A socket of a process that may not attach a filter."""

    def setsockopt(self, *_: object) -> None:  # type: ignore[override]
        raise PermissionError(1, "Operation not permitted")


def test_a_kernel_without_filters_is_a_warning_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with Forbidden() as listener, caplog.at_level(logging.WARNING, "paceline.runtime"):
        listener.bind(("127.0.0.1", 0))
        assert not gloo_sockets._drop_packets(listener)
        assert f"127.0.0.1:{listener.getsockname()[1]}" in caplog.text


def test_any_other_refusal_is_an_error() -> None:
    left, right = socket.socketpair()
    left.close()
    with right, pytest.raises(OSError, match="Bad file descriptor"):
        gloo_sockets._drop_packets(left)

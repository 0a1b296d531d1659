"""The token of a TrainJob goes to its own server only, and what that server answers ends no thread of a training."""

from __future__ import annotations

import socket
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.integrations import kubeflow


def serve(server: socket.socket, answer: bytes, asked: list[bytes]) -> None:
    """Answer every request alike."""

    def run() -> None:
        while True:
            try:
                caller, _ = server.accept()
            except OSError:
                return
            with caller:
                asked.append(caller.recv(10_000))
                caller.sendall(answer)

    threading.Thread(target=run, daemon=True).start()


def test_the_token_follows_no_redirection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a token")
    monkeypatch.setenv(kubeflow.TOKEN, str(tmp_path / "token"))
    asked: list[bytes] = []
    elsewhere: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("127.0.0.1", 0)) as other:
        place = f"http://127.0.0.1:{other.getsockname()[1]}/"
        serve(own, f"HTTP/1.0 302 Found\r\nLocation: {place}\r\n\r\n".encode(), asked)
        serve(other, b"HTTP/1.0 200 OK\r\n\r\n", elsewhere)
        monkeypatch.setenv(kubeflow.URL, f"http://127.0.0.1:{own.getsockname()[1]}/")
        with pytest.raises(OSError, match="302"):
            kubeflow._post({})
    assert b"Bearer a token" in asked[0]
    assert elsewhere == []


def test_an_answer_that_is_no_http_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a token")
    monkeypatch.setenv(kubeflow.TOKEN, str(tmp_path / "token"))
    ended, watch = threading.Event(), SimpleNamespace(steps=3)
    ended.set()
    with socket.create_server(("127.0.0.1", 0)) as server, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serve(server, b"noise\r\n\r\n", [])
        monkeypatch.setenv(kubeflow.URL, f"http://127.0.0.1:{server.getsockname()[1]}/")
        given: Any = watch
        kubeflow._report(given, 10, 0.01, ended)
    assert "the status of the TrainJob is not updated" in str(caught[0].message)

"""The newest line of each rank, from files and for Prometheus."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.runtime.observe import metrics
from paceline.runtime.observe.metrics import METRICS, prometheus_text, read_metrics


def line(rank: int = 0, **more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(METRICS, 1.0), "time": time.time(), "group": "g", "rank": rank, "shares": [1], **more}


def write(path: Path, *lines: Any) -> None:
    path.write_text("\n".join(json.dumps(each) for each in lines) + "\n", encoding="utf-8")


def test_the_newest_whole_line_of_each_rank_counts(tmp_path: Path) -> None:
    write(tmp_path / "g-1.jsonl", line(1, step=4), line(1, step=5), {"step": 6})
    write(tmp_path / "g-0.jsonl", line(0, step=8), line(0, step=9))
    with (tmp_path / "g-0.jsonl").open("a") as file:
        file.write('{"step": 10, "ti')
    write(tmp_path / "g-2.jsonl", {"other": 1})
    assert [(each["rank"], each["step"]) for each in read_metrics(str(tmp_path))] == [(0, 9), (1, 5)]


ODD: list[dict[str, Any]] = [
    {"step": "many"}, {"time": None}, {"group": {}}, {"group": 7}, {"rank": "first"}, {"share": [1]},
    {"view": float("nan")}, {"steps_per_second": float("inf")},
]  # fmt: skip


def test_lines_of_somebody_else_and_what_is_no_file_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "g-0.jsonl", line(0, step=8))
    for number, odd in enumerate(ODD):
        write(tmp_path / f"odd-{number}.jsonl", {**line(1), **odd})
    (tmp_path / "deep.jsonl").write_text("[" * 50_000)
    found = CliRunner().invoke(program, ["top", str(tmp_path), "--once"])
    assert found.exit_code == 0, found.output
    assert [each["step"] for each in read_metrics(str(tmp_path))] == [8]
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match=r"pipe\.jsonl cannot be read: not a regular file"):
        read_metrics(str(tmp_path))


def test_a_file_longer_than_its_tail_is_read_from_its_end(tmp_path: Path) -> None:
    write(tmp_path / "g-0.jsonl", *(line(0, step=number) for number in range(400)))
    assert (tmp_path / "g-0.jsonl").stat().st_size > 1 << 16
    assert read_metrics(str(tmp_path))[0]["step"] == 399


def test_a_name_begins_no_other_metric() -> None:
    text = prometheus_text({"group": 'a"} 1\nforged{x="\\', "rank": 0, "step": 3})
    assert text.splitlines()[-1] == 'paceline_step{group="a\\"} 1\\nforged{x=\\"\\\\",rank="0"} 3.0'


@pytest.mark.parametrize("answer", [b"noise\r\n\r\n", b"A" * 70_000, b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_whatever_answers_in_place_of_an_endpoint_is_one_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller:
                caller.recv(1000)
                caller.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InputError):
            read_metrics(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_an_answer_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ANSWER", 0.2)
    refused = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller:
                caller.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                refused.wait(60)  # the socket of the caller has a timeout of its own, which each byte puts off
                caller.sendall(json.dumps(line()).encode())

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InputError, match=r"does not answer within 0\.2 s"):
            read_metrics(f"http://127.0.0.1:{server.getsockname()[1]}")
        refused.set()


@pytest.mark.parametrize(
    "where", ["absent", "empty", "http://127.0.0.1:1", "http://127.0.0.1:x", "http://127.0.0.1:1/a b"]
)
def test_no_metrics_are_one_clear_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError) as caught:
        read_metrics(where if "//" in where else str(tmp_path / where))
    assert where.rpartition("/")[2] in caught.value.message
    assert "urlopen" not in caught.value.message


def test_prometheus_gets_every_metric_with_its_meaning_and_labels() -> None:
    text = prometheus_text(line(3, input_seconds=0.25))
    assert 'paceline_input_seconds{group="g",rank="3"} 0.25' in text.splitlines()
    assert text.count("# TYPE ") == text.count("# HELP ") == len(METRICS)
    assert prometheus_text({}) == "\n"


def test_an_endpoint_is_read_by_its_url() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/line.json"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(line(2, step=7)).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert read_metrics(f"http://127.0.0.1:{server.server_port}/")[0]["step"] == 7
        server.shutdown()


def test_top_shows_ranks_and_marks_those_that_are_silent(tmp_path: Path) -> None:
    write(tmp_path / "g-0.jsonl", line(0, input_seconds=0.002, steps_per_second=3.5))
    write(tmp_path / "g-1.jsonl", line(1, time=time.time() - 100))
    shown = CliRunner(env={"COLUMNS": "140"}).invoke(program, ["top", str(tmp_path), "--once"]).output
    assert "3.50" in shown
    assert "2.00 ms" in shown
    assert shown.count("silent") == 1
    document = json.loads(CliRunner().invoke(program, ["top", str(tmp_path), "--json"]).output)
    assert document["schema"] == "paceline.top/1"
    assert [each["rank"] for each in document["ranks"]] == [0, 1]


def test_top_without_metrics_is_exit_code_two(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(program, ["top", f"http://127.0.0.1:{taken.getsockname()[1]}"])
    assert isinstance(result.exception, InputError)

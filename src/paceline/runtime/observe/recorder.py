"""Writes the metrics of a rank once per second: JSON lines, an endpoint for Prometheus, event files for TensorBoard.

The training loop only accumulates values. A separate thread writes them; after a failed write it stops with one
warning, and training continues.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.channel.sockets import close_in_forks
from paceline.errors import InputError
from paceline.runtime.observe.metrics import METRICS, Line, prometheus_text
from paceline.runtime.samples import StepRecord
from paceline.runtime.settings import Settings

__all__ = ["MetricsRecorder"]

EVERY = 1.0
"""Seconds between two lines."""
WAITING_LINES = 100
"""Number of lines that may wait for a slow disk; further lines are dropped."""
REQUEST = 5.0
"""Seconds for a whole request to the endpoint."""
MOST_CALLERS = 16
"""Requests that are answered at one time."""
PAUSE = 0.05
"""Seconds until a process without descriptors looks for callers again."""
log = logging.getLogger("paceline.runtime")
Sink = Callable[[Line], None]


class MetricsRecorder:
    """Records the metrics of a rank; does nothing unless the settings enable an output."""

    def __init__(self, settings: Settings, *, group: str, rank: int) -> None:
        """`rank`: the launched rank, which does not change with the group."""
        self._about = {"group": group, "rank": rank}
        self._sinks = _sinks(settings, group, rank)
        self._server = _endpoint(settings.metrics_port + rank) if settings.metrics_port is not None else None
        self._lines: queue.Queue[Line | None] = queue.Queue(WAITING_LINES)
        self._steps: list[StepRecord] = []
        self._since = time.perf_counter()
        self._view = 0
        self._thread = threading.Thread(target=self._write, daemon=True, name="paceline-metrics")
        if self._sinks:
            self._thread.start()

    def step(self, record: StepRecord, *, rank: int, epoch: int, staleness: int) -> None:
        """Add a committed step; a line is written every second, and at every change of the group."""
        if not self._sinks and self._server is None:
            return
        if record.view != self._view and self._steps:
            self._steps.clear()
            self._since = record.ended - record.measured_seconds
        self._steps.append(record)
        if record.ended - self._since >= EVERY or record.view != self._view:
            self._tell(rank, epoch, staleness)
            self._view = record.view

    def close(self) -> None:
        """Write the remaining lines, and close the endpoint."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._sinks:
            self._lines.put(None)
            self._thread.join(REQUEST)
            self._sinks = []

    def _tell(self, rank: int, epoch: int, staleness: int) -> None:
        newest, steps = self._steps[-1], self._steps
        seconds = max(newest.ended - self._since, 1e-9)
        line = {
            "time": time.time(),
            **self._about,
            "step": newest.step,
            "epoch": epoch,
            "steps_per_second": len(steps) / seconds,
            "samples_per_second": sum(step.samples for step in steps) / seconds,
            "share": newest.shares[rank],
            "shares": list(newest.shares),
            "compute_seconds": statistics.fmean(step.measured_compute - step.measured_input for step in steps),
            "input_seconds": statistics.fmean(step.measured_input for step in steps),
            "exchange_seconds": statistics.fmean(step.measured_exchange for step in steps),
            "staleness": staleness,
            "view": newest.view,
            "ranks": len(newest.shares),
        }
        self._steps, self._since = [], newest.ended
        if self._server is not None:
            self._server.line = line
        if self._sinks and not self._lines.full():
            self._lines.put(line)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            for sink in list(self._sinks):
                try:
                    sink(line)
                except OSError as error:
                    log.warning("metrics are no longer written: %s; training continues", error)
                    self._sinks.remove(sink)


def _sinks(settings: Settings, group: str, rank: int) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.metrics is not None:
        path = settings.metrics / f"{group}-{rank}.jsonl"

        def append(line: Line) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

        sinks.append(append)
    if settings.tensorboard is not None:
        sinks.append(_scalars(settings, f"{group}-{rank}"))
    return sinks


def _scalars(settings: Settings, name: str) -> Sink:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("Settings(tensorboard=...) needs TensorBoard", hint="pip install tensorboard") from None
    writer = SummaryWriter(str(settings.tensorboard / name if settings.tensorboard else name))

    def add(line: Line) -> None:
        for metric in METRICS:
            writer.add_scalar(f"paceline/{metric}", line[metric], line["step"])
        writer.flush()

    return add


LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?", re.IGNORECASE)
"""Hosts of a request: a page in a browser can give another name the address of this host, and read what it answers."""


class _Endpoint(ThreadingHTTPServer):
    """Answers each request within seconds; the oldest makes room where many callers say nothing."""

    line: Line = {}  # noqa: RUF012 - replaced, never changed
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        self._open: dict[Any, None] = {}
        """Connections of requests, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        close_in_forks(self.socket)

    def get_request(self) -> tuple[Any, Any]:
        """The next caller; without descriptors, after a pause in place of a loop that takes a whole core."""
        try:
            return super().get_request()
        except OSError:
            self._drop_oldest()
            time.sleep(PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it in a thread of its own."""
        with self._lock:
            full = len(self._open) >= MOST_CALLERS
            self._open[request] = None
        if full:
            self._drop_oldest()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _drop_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
            if oldest is not None:
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its thread is woken, and closes it
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level only, because a client may disconnect at any time."""
        log.debug("a request for metrics from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST
    server: _Endpoint

    def setup(self) -> None:
        super().setup()
        # A caller that sends a byte now and then would keep others out.
        self._limit = threading.Timer(REQUEST, self._hang_up)
        self._limit.daemon = True
        self._limit.start()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # it may be closed already
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self._limit.cancel()
        super().finish()

    def do_GET(self) -> None:
        line = self.server.line
        if not LOOPBACK.fullmatch(self.headers.get("Host", "localhost")):
            self.send_error(403, "this endpoint answers to localhost only")
        elif self.path == "/metrics":
            self._answer("text/plain; version=0.0.4", prometheus_text(line))
        elif self.path == "/line.json":
            self._answer("application/json", json.dumps(line))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _endpoint(port: int) -> _Endpoint | None:
    """On the loopback interface; a port that is taken is a warning."""
    try:
        server = _Endpoint(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        log.warning("no endpoint for metrics on port %d: %s; training goes on", port, error)
        return None
    threading.Thread(target=server.serve_forever, daemon=True, name="paceline-endpoint").start()
    return server

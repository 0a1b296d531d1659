"""Progress and time left in the status of a Kubeflow TrainJob, posted in the format of Kubeflow Trainer (KEP-2779)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator

from paceline.integrations.watching import Watch

__all__ = ["report_progress"]

URL, CERTIFICATE, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
"""Variables in every pod of a TrainJob: an address, the file of its certificate authority, and a token file."""


@contextlib.contextmanager
def report_progress(watch: Watch, total_steps: int, *, every_s: float = 10.0) -> Iterator[None]:
    """Report the steps of a watched training until the block ends; outside of a TrainJob, nothing happens."""
    given = (watch, max(1, total_steps), every_s, ended := threading.Event())
    thread = threading.Thread(target=_report, args=given, daemon=True)
    if os.environ.get(URL) and int(os.environ.get("RANK") or 0) == 0:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join() if thread.ident else None


def _report(watch: Watch, total_steps: int, every_s: float, ended: threading.Event) -> None:
    seen, last = [(time.monotonic(), watch.steps)], False
    while not last:
        last = ended.wait(every_s)
        seen = [*seen[-30:], (time.monotonic(), watch.steps)]  # recent steps: a training may become slower
        (begin, before), (now, done) = seen[0], seen[-1]
        status = {"progressPercentage": min(100, 100 * done // total_steps),
                  "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
        if step_s := (now - begin) / max(1, done - before) * (done > before):
            status["estimatedRemainingSeconds"] = round(max(0, total_steps - done) * step_s)
            status["metrics"] = [{"name": "step_seconds", "value": f"{step_s:.6g}"}]
        try:
            _post({"trainerStatus": status})
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:  # training continues
            warnings.warn(f"paceline: the status of the TrainJob is not updated: {error}", stacklevel=1)


def _post(document: dict[str, object]) -> None:
    with open(os.environ[TOKEN], encoding="utf-8") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ[URL], json.dumps(document).encode(), headers, method="POST")
    trusted = ssl.create_default_context(cafile=os.environ.get(CERTIFICATE))
    secured = urllib.request.HTTPSHandler(context=trusted)
    urllib.request.build_opener(secured, _StaysHere()).open(request, timeout=5).close()


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, which would carry the token to another server."""

    def redirect_request(self, *_: object) -> None:
        """Nothing is asked for elsewhere: the redirection is an error."""

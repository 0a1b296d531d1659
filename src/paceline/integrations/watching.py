"""Watching a training: as a block in the user's script, or as an unchanged command."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline import variables
from paceline.errors import InputError, PacelineError, missing_extra
from paceline.explain.setting import setting_of
from paceline.explain.watched import StepVerdict, judge_steps
from paceline.integrations.live import LiveWatch
from paceline.measurements.store import Store, default_store
from paceline.measurements.trace.observed import Observed, check_name, record
from paceline.report.terminal.watched import verdict_lines
from paceline.runtime.watch.arming import armed
from paceline.runtime.watch.job import name_of_command, observe, read_records, run_watched
from paceline.runtime.watch.recorder import Recorder, place_of_process

__all__ = ["Watch", "Watched", "watch", "watch_command"]

WAITS_S = 10.0
"""How long the first rank waits for the records of the others."""


@dataclass(frozen=True)
class Watched:
    """The result of a watched training."""

    campaign: str
    """Id in the store; empty if nothing could be stored."""
    judgement: StepVerdict | None
    note: str = ""
    """Why nothing was stored."""
    exit_code: int = 0
    labels: tuple[str, ...] = ()
    """Notes for the verdict."""

    @property
    def lines(self) -> list[str]:
        """The verdict in words."""
        if self.judgement is None:
            return [f"paceline watch: nothing stored: {self.note}"]
        name = self.campaign
        following = (f"  Next: paceline explain {name}; paceline report {name};",
                     f"        paceline predict --from {name} --cluster ...")  # fmt: skip
        notes = (f"  Note: {label}" for label in self.labels)
        return [*verdict_lines(self.judgement, name), *notes, *following]


def watch_command(command: Sequence[str], store: Store, *, name: str | None, every: int, quiet: bool) -> Watched:
    """Run a command, store what its processes recorded, and judge it. The exit code is that of the command."""
    label = name or name_of_command(command)
    check_name(label)
    store.prepare()
    with tempfile.TemporaryDirectory(prefix="paceline-watch-") as folder:
        with LiveWatch(Path(folder)) as live:
            code = run_watched(command, Path(folder), every=every, quiet=quiet)
        ended = (f"the command ended with exit code {code}",) if code else ()
        return _stored(Path(folder), label, store, ended, code, live.documents)


def _stored(
    folder: Path, name: str, store: Store, labels: tuple[str, ...] = (), code: int = 0,
    alerts: Sequence[dict[str, Any]] = (),
) -> Watched:  # fmt: skip
    try:
        observed = observe(name, read_records(folder), labels=labels)
        observed = replace(observed, facts={**observed.facts, "alerts": list(alerts)})
        return Watched(record(observed, store), judged(observed), "", code, observed.labels)
    except PacelineError as error:
        return Watched("", None, str(error), code)


def judged(observed: Observed) -> StepVerdict:
    """The verdict on the steps of an observed training that count."""
    timed = [step for step in observed.steps if step.step >= observed.warmup]
    machine = observed.machine
    return judge_steps(timed, setting_of(observed.facts, machine.threads, machine.cores, observed.ranks))


def watch(
    model: Any = None, optimizer: Any = None, *, name: str = "watched", store: Path | str | None = None,
    every: int = 1, quiet: bool = False,
) -> Watch:  # fmt: skip
    """Watch the PyTorch training of a `with` block, on every rank, and store it as a run. Needs torch.

        with paceline.watch() as w:
            for inputs, targets in loader:
                ...
        print(w.summary())

    Without `model` the outermost modules are found. `every` = 20 watches one of twenty steps, at less cost.
    `name` is how `paceline show`, `explain`, `report` and `predict --from` call the run. The first rank
    stores the records of all ranks of its host, and prints the verdict unless it is `quiet`.
    """
    check_name(name)
    return Watch(model, optimizer, name=name, store=store, every=every, quiet=quiet)


class Watch:
    """The block of `paceline.watch`; `watched` holds the outcome after it, on the first rank."""

    def __init__(
        self, model: Any = None, optimizer: Any = None, *, name: str = "watched", store: Path | str | None = None,
        every: int = 1, quiet: bool = False,
    ) -> None:  # fmt: skip
        if every < 1:
            raise InputError(f"every = {every}: expected 1 or more", hint="every=20 watches one of twenty steps")
        self._model, self._optimizer, self._name, self._every, self._quiet = model, optimizer, name, every, quiet
        self._store = Store(Path(store) if store is not None else default_store())
        self._hooks: Any = None
        self._recorder: Recorder | None = None
        self._folder = Path()
        self.watched: Watched | None = None

    def __enter__(self) -> Watch:
        if variables.WATCH in os.environ:  # `paceline watch` watches this process already
            self._recorder = armed()
            return self
        try:
            from paceline.runtime.watch.hooks import Hooks
        except ModuleNotFoundError as error:
            raise (missing_extra("torch", "torch") if error.name == "torch" else error) from None
        job = "-".join(os.environ.get(name, "0") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
        alone = f"-{os.getpid()}" if _world() == 1 else ""
        self._folder = self._store.root / "watching" / f"{self._name}-{job.replace('/', '_')}{alone}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder(str(self._folder), self._every)
        self._hooks = Hooks(self._recorder, self._model, self._optimizer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._hooks is None:
            return
        self._hooks.remove()
        self._hooks.recorder.close()
        if place_of_process()[0] == 0:
            self._wait()
            self.watched = _stored(self._folder, self._name, self._store)
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._quiet:
                sys.stdout.write("\n".join([*self.watched.lines, ""]))

    def _wait(self) -> None:
        """Wait until every rank has written its last record, with a short timeout, because a rank may have died."""
        until = time.monotonic() + WAITS_S
        while sum(bool(found.get("ended")) for found in read_records(self._folder)) < _world():
            if time.monotonic() > until:
                return
            time.sleep(0.05)

    @property
    def steps(self) -> int:
        """Steps of this rank so far."""
        return self._recorder.step if self._recorder is not None else 0

    def summary(self) -> str:
        """The verdict in words; while the training runs, on the steps that all ranks have written so far."""
        if self.watched is not None:
            return "\n".join(self.watched.lines)
        if self._recorder is None or not self._recorder.alive:
            return "the first rank has the summary of the whole training"
        self._recorder.flush()
        try:
            observed = observe(self._name, read_records(Path(self._recorder.folder)))
            return "\n".join(verdict_lines(judged(observed), "still running"))
        except InputError as error:
            return f"paceline watch: {error.message}, so far"


def _world() -> int:
    return place_of_process()[1]

"""The worker's side of a launch: synchronize passes with the other ranks, time them, write events.

A framework provides a Session; everything else is common to all frameworks. Standard library only, Python 3.9 syntax
only, because it runs inside every framework's own environment.

Events are lines of JSON in the rank's file; the kinds are `phase`, `facts`, `pass`, `spans`, `error`, `done`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from paceline import variables
from paceline.bench.frameworks.rendezvous import ControlChannel, join_job
from paceline.bench.virtual.namespaces import set_parent_death_signal

__all__ = ["Events", "Job", "Session", "main", "opened_job", "pin", "settled", "trend"]

Job = dict[str, Any]
Rows = list[list[float]]
"""Start and seconds of steps."""
LAST_PASS = {"resident": "resident", "copied": "copied", "files": "full"}
"""The pass that runs the complete step for each input."""
MAX_WARMUP = 300
WINDOW = 5
"""Fewest steps of each of the two windows that are compared at the end of warm-up."""
UNSEEN = 0.7
"""Largest standard error of the difference of two windows, in tolerances: noise must not hide a difference."""
TREND = 1.28
"""Mann-Kendall statistic beyond which step times have a trend: one in five without a trend exceeds it."""
BLOCK = 5
"""Number of consecutive steps of one pass."""
LEAST = 5
"""Minimum number of complete steps that a launch times, independent of their duration."""
UNPHASED = 4
"""Blocks of complete steps of a launch without phases; between two the launch can end."""
TRACED = 3
"""Most steps with hooks."""
WARMUP_SHARE = 0.5
"""Largest share of a launch's budget that warm-up takes."""
OUT_OF_MEMORY_EXIT = 77
MISMATCH_EXIT = 78


class Session:
    """The interface of a framework's worker. Subclasses override the methods that apply to the framework."""

    versions: dict[str, str]
    labels: list[str]
    same: dict[str, str] = {}  # noqa: RUF012  replaced, never changed
    """Passes that equal another pass, which is run only once: name by name."""

    def step(self, upto: str) -> None:
        """One step up to and including a pass's part: forward, compute, exchange, resident, copied or full."""
        raise NotImplementedError

    def begin_timing(self) -> None:
        """Called after warm-up, before the timed steps."""

    def sync(self) -> None:
        """Wait until the device has completed all its work."""

    def mark(self) -> dict[str, float]:
        """Run one complete step with the framework's own timers: seconds by phase."""
        return {}

    def trace(self, step: int) -> list[dict[str, Any]]:
        """Run one complete step with hooks: spans of layers and gradients."""
        return []

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run, such as the loss or the wrapper."""
        return {}

    def close(self) -> None:
        """Leave the group of ranks."""


class Events:
    """The rank's event file: one JSON value per line, flushed at once."""

    def __init__(self, path: str) -> None:
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, event: str, **content: Any) -> None:
        """Append one event."""
        self._file.write(json.dumps({"event": event, **content}) + "\n")
        self._file.flush()


def opened_job() -> tuple[Job, int, Events]:
    """The job of this process, its rank, and its event file."""
    with open(os.environ[variables.JOB], encoding="utf-8") as file:
        job = json.load(file)
    return job, int(os.environ[variables.RANK]), Events(os.environ[variables.EVENTS])


def main(make_session: Callable[[Job, int], Session]) -> None:
    """Run this rank to its end and exit; threads of frameworks must not block the exit."""
    _die_with_launcher()
    faulthandler.register(signal.SIGTERM, chain=True)  # writes the stack of a hanging rank to the log
    job, rank, events = opened_job()
    pin()
    code = 0
    try:
        events.write("phase", phase="setup")
        channel = join_job(rank, job["ranks"])
        if job.get("proofs"):
            _prove(job, rank, make_session, channel, events)
        else:
            session = _opened(make_session, job, rank, events)
            _run(job, rank, session, channel, events)
            session.close()
        events.write("done")
    except BaseException as error:
        events.write("error", kind=type(error).__name__, message=str(error)[:2000], at=time.time())
        traceback.print_exc()
        code = OUT_OF_MEMORY_EXIT if _is_out_of_memory(error) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(job: Job, rank: int, session: Session, channel: ControlChannel, events: Events) -> None:
    offsets = channel.clock_offsets()
    events.write("phase", phase="measure")
    if rank == 0 and job["ranks"] > 1:
        events.write("facts", facts={"clock_offsets_s": offsets})
    last, end = LAST_PASS[job["input"]], time.perf_counter() + job["launch_budget"]
    warm, limited = _warm_up(job, session, channel, last)
    events.write("facts", facts={"warmup_limited": limited})
    typical = max(statistics.median(seconds for _, seconds in warm[-WINDOW:]), 1e-9)
    steps, phase_steps = channel.agree(_fitting(job, session, (end - time.perf_counter()) / typical))
    traced = min(TRACED, phase_steps)
    clean, split = _alternate(job, session, channel, (steps, phase_steps), end - (phase_steps + traced) * typical)
    events.write("pass", name="clean", warmup=len(warm), warmup_rows=warm, rows=clean)
    for name, rows in split.items():
        events.write("pass", name=name, warmup=0, rows=rows)
    if job["phases"]:
        marks = [session.mark() for _ in range(phase_steps)]
        events.write("facts", timers=_means(marks))
        events.write("spans", spans=[span for step in range(traced) for span in session.trace(step)])
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    events.write("facts", facts={**session.facts(), "peak_memory_bytes": peak})
    channel.barrier()


def _opened(make_session: Callable[[Job, int], Session], job: Job, rank: int, events: Events) -> Session:
    session = make_session(job, rank)
    events.write("facts", versions=session.versions, labels=session.labels, pid=os.getpid())
    return session


def _prove(
    job: Job, rank: int, make_session: Callable[[Job, int], Session], channel: ControlChannel, events: Events
) -> None:
    """All proofs in one process, because starting the framework takes most of the time of a proof."""
    from paceline.bench.frameworks.arrays import prove  # needs NumPy, which timing does not

    events.write("phase", phase="verify")
    session = None
    for proof in job["proofs"]:
        asked = {**job, "network": proof["network"], "proof": proof}
        session = _opened(make_session, asked, rank, events)
        prove(asked, rank, session)
        channel.barrier()
    if session is not None:
        session.close()


def _warm_up(job: Job, session: Session, channel: ControlChannel, last: str) -> tuple[Rows, bool]:
    """Complete steps until step times are stable on every rank, and whether the limit ended them instead."""
    channel.barrier()
    start = time.perf_counter()
    rows: Rows = []
    while True:
        _timed(session, last, 5 if rows else job["warmup"], start, rows)
        stable = settled([seconds for _, seconds in rows], least=job["warmup"], tolerance=job["tolerance"])
        late = len(rows) >= MAX_WARMUP or time.perf_counter() - start > WARMUP_SHARE * job["launch_budget"]
        ranks = channel.gather([stable, late]) or []
        everywhere, anywhere = all(one for one, _ in ranks), any(other for _, other in ranks)
        everywhere, anywhere = channel.agree([everywhere, anywhere])
        if everywhere or anywhere:
            return rows, not everywhere


def _fitting(job: Job, session: Session, most: float) -> list[int]:
    """Timed complete steps, and steps of each pass: as requested, or fewer, so that all are at most this many."""
    steps, phase_steps = job["steps"], job["phase_steps"] if job["phases"] else 0
    # Complete steps, partial ones, which take no longer, the steps with the framework's timers, and the traced ones.
    asked = steps + phase_steps * (len(_partial(job, session)) + 1) + min(TRACED, phase_steps)
    share = min(1.0, max(0.0, most) / asked)
    return [max(LEAST, int(share * steps)), max(2, int(share * phase_steps)) if phase_steps else 0]


def _partial(job: Job, session: Session) -> list[str]:
    """The passes that must run: not those that equal another, and not the last, which is the complete step."""
    last = LAST_PASS[job["input"]]
    whole = session.same.get(last, last)
    return [name for name in job["passes"] if name not in (last, whole) and name not in session.same]


def _alternate(
    job: Job, session: Session, channel: ControlChannel, steps: tuple[int, int], end: float
) -> tuple[Rows, dict[str, Rows]]:
    """Complete steps without instrumentation and partial steps, in short alternating blocks, until `end`.

    So drift of the machine during the launch affects all passes equally, and phases sum to the step. The first step of
    a block is not counted, because memory and caches are in the state that the previous pass left. Of passes that equal
    the complete step, the rows are those of every second block, or of every second step if there is one block: a second
    timing of the same step that costs nothing.
    """
    names, last = _partial(job, session), LAST_PASS[job["input"]]
    blocks: list[Rows] = []
    split: dict[str, Rows] = {name: [] for name in names}
    turns = _parts(steps[1], max(1, steps[1] // BLOCK)) if job["phases"] else (UNPHASED - 1) * [0]
    session.begin_timing()
    start = now = time.perf_counter()
    longest = 0.0
    for turn, whole in enumerate(_parts(steps[0], len(turns) + 1)):
        # Rank 0 decides, with the longest turn so far: step times during warm-up can mislead.
        if sum(map(len, blocks)) >= LEAST and channel.agree(now + longest > end):
            break
        blocks.append([])
        _block(session, channel, last, whole, start, blocks[-1], fresh=turn == 0 or bool(job["phases"]))
        for name in names if job["phases"] and turn < len(turns) else ():
            _block(session, channel, name, turns[turn], start, split[name])
        now, before = time.perf_counter(), now
        longest = max(longest, now - before)
    clean = [row for block in blocks for row in block]
    if not job["phases"]:
        return clean, {}
    again = [row for block in blocks[1::2] for row in block] or clean[1::2]
    return clean, {name: split.get(session.same.get(name, name), again) for name in job["passes"]}


def _parts(count: int, number: int) -> list[int]:
    """Divide `num_steps` steps into `num_blocks` blocks of nearly equal size."""
    return [count * (part + 1) // number - count * part // number for part in range(number)]


def _block(
    session: Session, channel: ControlChannel, upto: str, count: int, start: float, rows: Rows, *, fresh: bool = True
) -> None:
    channel.barrier()
    if fresh:
        session.step(upto)
        session.sync()
    _timed(session, upto, count, start, rows)


def _timed(session: Session, upto: str, count: int, start: float, rows: Rows) -> None:
    """Time synchronized steps, each from the end of the previous step."""
    clock, step, sync = time.perf_counter, session.step, session.sync
    begin = clock()
    for _ in range(count):
        step(upto)
        sync()
        end = clock()
        rows.append([begin - start, end - begin])
        begin = end


def settled(seconds: list[float], *, least: int, tolerance: float) -> bool:
    """Whether warm-up is over: at least `least` steps ran, and the last two windows, a third of all steps each, agree.

    They agree if their medians differ by at most `tolerance`, if the noise of steps is small enough to show such a
    difference, and if both together have no trend (Mann-Kendall).
    """
    window = max(WINDOW, len(seconds) // 3)
    if len(seconds) < max(least, 2 * window):
        return False
    recent, before = seconds[-window:], seconds[-2 * window : -window]
    middle, middle_before = statistics.median(recent), statistics.median(before)
    allowed = tolerance * min(middle, middle_before)
    lower, _, upper = statistics.quantiles(before + recent, n=4)
    error = 1.25 * (upper - lower) / 1.349 * math.sqrt(2 / window)
    if error > UNSEEN * allowed or abs(middle - middle_before) > allowed:
        return False
    return abs(trend(before + recent)) <= TREND


def trend(values: list[float]) -> float:
    """Mann-Kendall statistic: standard normal without a trend, negative if values fall."""
    rising = sum(
        (later > earlier) - (later < earlier) for place, earlier in enumerate(values) for later in values[place + 1 :]
    )
    count = len(values)
    return rising / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


def _means(marks: list[dict[str, float]]) -> dict[str, float]:
    names = {name for mark in marks for name in mark}
    return {name: statistics.mean(mark.get(name, 0.0) for mark in marks) for name in sorted(names)}


def pin() -> None:
    """Pin this process to the cores of its rank."""
    cores = os.environ.get(variables.CORES)
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def _die_with_launcher() -> None:
    with contextlib.suppress(OSError, AttributeError):
        set_parent_death_signal()
    parent = os.environ.get(variables.PARENT)
    if parent and os.getppid() != int(parent):  # the parent died before prctl took effect
        os._exit(1)


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "failed to allocate")
    return isinstance(error, MemoryError) or any(word in text for word in words)

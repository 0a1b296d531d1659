"""Operations of a job with pipeline stages: a table with a row per operation, as the straggler study of OSDI'25 has.

Columns: dp_rank, stage, rank, step, optype, start_ts and duration in seconds; seq_id, mb_id (micro-batch) and gmc
(model chunk, of the whole model or of its stage) where they are known. Parquet or CSV.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace.chrome import checked_events
from paceline.measurements.trace.rank_trace import phase_by_words
from paceline.measurements.trace.stream import EventStream, begin_of

__all__ = ["COMPUTES", "Operations", "looks_like_operations", "phase_of_kind", "read_operations"]

COMPUTES = ("forward-compute", "backward-compute")

NUMBERS = ("dp_rank", "stage", "rank", "step")
TIMES = ("start_ts", "duration")
OPTIONAL = ("seq_id", "mb_id", "gmc", "mc")
MOST = 20_000_000
LONGEST_S = 600.0
"""Seconds of one micro-batch on one stage, beyond which the table is not in seconds."""
ROUGHEST = 0.05
"""Largest rounding of recorded begins, as a share of a computation."""
HINT = f"expected the columns {', '.join((*NUMBERS, 'optype', *TIMES))}, times in seconds"
IN_THREAD = re.compile(r"PP rank (\d+)(?:, TP rank (\d+))?")
"""The name of a thread in a timeline."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Operations:
    """Every operation of a job: columns of equal length."""

    path: str
    dp_rank: Ints
    stage: Ints
    rank: Ints
    step: Ints
    kind: NDArray[np.str_]
    start: NDArray[np.float64]
    seconds: NDArray[np.float64]
    sequence: Ints
    micro_batch: Ints
    """-1 where an operation belongs to no micro-batch."""
    chunk: Ints
    """Model chunk, counted through the whole model; -1 where there is none."""

    @property
    def end(self) -> NDArray[np.float64]:
        """When each operation ended."""
        return self.start + self.seconds

    def step_seconds(self) -> dict[int, float]:
        """Measured time of each step: from its first operation to its last, over all ranks."""
        found = {}
        for step in np.unique(self.step):
            chosen = self.step == step
            found[int(step)] = float(self.end[chosen].max() - self.start[chosen].min())
        return found

    def spans(self) -> Iterator[Span]:
        """The operations as spans, one step after the other; each names its stage, micro-batch and model chunk."""
        ranks = {rank: place for place, rank in enumerate(np.unique(self.rank).tolist())}
        shift = 0.0
        for number, (step, seconds) in enumerate(self.step_seconds().items()):
            chosen = np.flatnonzero(self.step == step)
            first = float(self.start[chosen].min())
            for index in chosen.tolist():
                kind = str(self.kind[index])
                begin = shift + float(self.start[index]) - first
                yield Span(ranks[int(self.rank[index])], number, phase_of_kind(kind), self._name(index, kind), begin,
                           float(self.seconds[index]), None, "operations")  # fmt: skip
            shift += 1.001 * seconds

    def _name(self, index: int, kind: str) -> str:
        parts = [kind, f"stage {self.stage[index]}"]
        parts += [f"micro-batch {self.micro_batch[index]}"] if self.micro_batch[index] >= 0 else []
        parts += [f"chunk {self.chunk[index]}"] if self.chunk[index] >= 0 else []
        return " ".join(parts)


def phase_of_kind(kind: str) -> str:
    """The phase of an operation by its name; operations other than passes and exchanges belong to the update."""
    return phase_by_words(kind) or "update"


def looks_like_operations(path: Path) -> bool:
    """Whether a file is Parquet, or CSV with our columns."""
    begin = begin_of(path, 4096)
    return begin[:4] == b"PAR1" or _is_timeline(begin) or (b"optype" in begin.split(b"\n")[0] and b"," in begin)


def read_operations(path: Path) -> Operations:
    """The operations in a file; every wrong column is one clear error."""
    table = _table(path)
    missing = [name for name in (*NUMBERS, "optype", *TIMES) if name not in table.column_names]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}", hint=HINT)
    if not 0 < table.num_rows <= MOST:
        raise InputError(f"{path} has {table.num_rows:,} operations, expected 1 to {MOST:,}", hint=HINT)
    whole = {name: _whole(table, name, path) for name in NUMBERS}
    others = {name: _whole(table, name, path, least=-1) if name in table.column_names
              else np.full(table.num_rows, -1) for name in OPTIONAL}  # fmt: skip
    start, seconds = (_seconds(table, name, path) for name in TIMES)
    wrong = np.flatnonzero(seconds < 0)
    if wrong.size:
        raise InputError(
            f"{path}: duration: row {wrong[0]} lasts {seconds[wrong[0]]:g} s, expected 0 or more", hint=HINT
        )
    if table["optype"].null_count:
        raise InputError(f"{path}: optype: {table['optype'].null_count} missing, expected text", hint=HINT)
    try:
        coded = pc.dictionary_encode(pc.cast(table["optype"], pa.string()).combine_chunks())
        kinds = _spelled(np.array(coded.dictionary.to_pylist(), dtype=str))[coded.indices.to_numpy()]
    except pa.ArrowException as error:
        raise InputError(f"{path}: optype: {error}, expected text", hint=HINT) from None
    found = Operations(str(path), **whole, kind=kinds, start=start, seconds=seconds, sequence=others["seq_id"],
                       micro_batch=others["mb_id"], chunk=others["gmc"])  # fmt: skip
    _check_computes(found, rounded=_rounding(table["start_ts"].type, start))
    return _split_pairs(
        replace(found, chunk=_of_exchanges(replace(found, chunk=_through_the_model(found)), others["mc"]))
    )


def _spelled(kinds: NDArray[np.str_]) -> NDArray[np.str_]:
    """Names as the study writes them: `Forward_Compute` is forward-compute."""
    spelled: NDArray[np.str_] = np.char.replace(np.char.lower(kinds), "_", "-")
    return spelled


def _rounding(kind: pa.DataType, start: NDArray[np.float64]) -> float:
    """Seconds by which the begin of an operation may be wrong because of the type of its column."""
    return float(np.spacing(np.float32(np.abs(start).max()))) if pa.types.is_float32(kind) else 0.0


def _check_computes(found: Operations, *, rounded: float) -> None:
    """Refuse what could only give wrong times: other names, other units, rounded begins, rows or ranks twice."""
    computes = np.isin(found.kind, COMPUTES)
    usual = float(np.median(found.seconds[computes])) if computes.any() else 0.0
    placed = np.unique(np.stack([found.rank, found.dp_rank, found.stage]), axis=1)[0]
    chosen = np.flatnonzero(computes & (found.seconds > 0))
    forward = found.kind == COMPUTES[0]
    keys = (found.step, found.rank, forward, found.micro_batch, found.chunk, found.start)
    once = np.unique(np.stack([key[chosen] for key in keys]), axis=1).shape[1]
    if not computes.any():
        kinds = ", ".join(sorted({str(kind)[:40] for kind in found.kind})[:6])
        what = f"optype: no operation is called {' or '.join(COMPUTES)}, the table has {kinds}"
    elif usual > LONGEST_S:
        what = f"duration: a computation usually takes {usual:g} s, expected {LONGEST_S:g} at most: is it in seconds?"
    elif usual and rounded > ROUGHEST * usual:
        what = (f"start_ts: single precision rounds to {rounded:.2g} s here, and a computation takes {usual:.2g} s: "
                "count from the first operation, or write doubles")  # fmt: skip
    elif np.unique(placed).size < placed.size:
        rank = placed[np.flatnonzero(np.diff(placed) == 0)[0]]
        what = f"rank: {rank} is at several places (dp_rank, stage), expected a number of its own for each"
    elif once < chosen.size:
        what = f"{chosen.size - once} computations of one rank, step and begin are there twice, expected each once"
    else:
        return
    raise InputError(f"{found.path}: {what}", hint=HINT)


def _through_the_model(found: Operations) -> Ints:
    """Chunks counted through the whole model; a chunk of several stages was counted within its stage."""
    known = found.chunk >= 0
    pairs = np.unique(np.stack([found.chunk[known], found.stage[known]]), axis=1)
    if np.unique(pairs[0]).size == pairs.shape[1]:
        return found.chunk
    first, last = int(found.stage.min()), int(found.stage.max())
    return np.where(known, found.chunk * (last - first + 1) + found.stage - first, found.chunk)


def _of_exchanges(found: Operations, within: Ints) -> Ints:
    """Chunks also where a row says only which one of its stage it belongs to, as computations of that chunk do."""
    known = (found.chunk >= 0) & (within >= 0)
    names = {(stage, one): chunk for stage, one, chunk in zip(
        found.stage[known].tolist(), within[known].tolist(), found.chunk[known].tolist(), strict=True)}  # fmt: skip
    chunk = found.chunk.copy()
    for (stage, one), value in names.items():
        chunk[(found.chunk < 0) & (found.stage == stage) & (within == one)] = value
    return chunk


def _table(path: Path) -> pa.Table:
    begin = begin_of(path, 4096, HINT)
    packed = begin[:4] == b"PAR1"
    if _is_timeline(begin):
        return _timeline(path)
    try:
        table = pq.ParquetFile(path).read(use_threads=False) if packed else pyarrow.csv.read_csv(path)
        _ = table.column_names  # not all of them may be text
        return table
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"{path} is not a readable table: {reason}", hint=HINT) from None


def _is_timeline(begin: bytes) -> bool:
    """Whether Chrome events are the study's timeline of a job, in which a process is a replica, a thread a stream."""
    return begin.lstrip()[:1] == b"[" and b'"mb_id"' in begin and b"-compute" in begin


def _timeline(path: Path) -> pa.Table:
    """The table of a timeline; names of threads say the stage."""
    rows: list[dict[str, Any]] = []
    places: dict[Any, tuple[int, int]] = {}
    for event in checked_events(EventStream(path)):
        args, thread = event.get("args") or {}, (event.get("pid"), event.get("tid"))
        if event.get("ph") == "X":
            rows.append(_timed(event, thread, args))
        elif event.get("name") == "thread_name":
            named = IN_THREAD.match(str(args.get("name")))
            places.update({thread: (int(named[1]), int(named[2] or 0))} if named else {})
    unknown = next((row["thread"] for row in rows if row["thread"] not in places), None)
    if unknown is not None or not rows:
        raise InputError(f"{path}: no thread_name says the stage of thread {unknown}, as in 'PP rank 0, compute'",
                         hint="import the table of operations, which has a column for it")  # fmt: skip
    for row in rows:
        row["stage"], row["shard"] = places[row["thread"]]
    placed = sorted({(row["stage"], row["dp_rank"], row["shard"]) for row in rows})
    ranks = {place: number for number, place in enumerate(placed)}
    for row in rows:
        row["rank"] = ranks[row["stage"], row["dp_rank"], row["shard"]]
    try:
        return pa.table({name: [row[name] for row in rows] for name in (*NUMBERS, "optype", *TIMES, *OPTIONAL)})
    except pa.ArrowException as error:
        raise InputError(f"{path}: {str(error)[:120]}", hint=HINT) from None


def _timed(event: dict[str, Any], thread: Any, args: dict[str, Any]) -> dict[str, Any]:
    """An operation of a timeline; what it does not say is -1."""
    said = {name: -1 if args.get(name) is None else args[name] for name in ("seq_id", "mb_id", "model_chunk")}
    kind = str(event.get("name"))
    chunk = said.pop("model_chunk")
    return {
        "thread": thread, "dp_rank": event.get("pid"), "step": args.get("step"), "optype": kind, "mc": chunk,
        "gmc": chunk if kind.endswith("-compute") else -1, "start_ts": 1e-6 * event.get("ts", 0.0),
        "duration": 1e-6 * event.get("dur", 0.0), **said,
    }  # fmt: skip


def _whole(table: pa.Table, name: str, path: Path, least: int = 0) -> Ints:
    column = table[name]
    if not pa.types.is_integer(column.type) or column.null_count:
        raise InputError(f"{path}: {name}: got {column.type} with {column.null_count} missing, expected whole numbers",
                         hint=HINT)  # fmt: skip
    values: Ints = column.to_numpy().astype(np.int64)
    if values.min() < least or values.max() >= 2**31:
        raise InputError(f"{path}: {name}: got {values.min()} to {values.max()}, expected {least} or more", hint=HINT)
    return values


def _seconds(table: pa.Table, name: str, path: Path) -> NDArray[np.float64]:
    column = table[name]
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)) or column.null_count:
        raise InputError(
            f"{path}: {name}: got {column.type} with {column.null_count} missing, expected numbers", hint=HINT
        )
    values: NDArray[np.float64] = column.to_numpy().astype(np.float64)
    if not np.isfinite(values).all() or np.abs(values).max() > 1e12:
        raise InputError(f"{path}: {name}: a value is not finite, or above 1e12 s", hint=HINT)
    return values


PAIRS = {
    "forward-send-backward-recv": ("forward-send", "backward-recv"),
    "backward-send-forward-recv": ("backward-send", "forward-recv"),
}


def _split_pairs(found: Operations) -> Operations:
    """A send and a receive that were recorded as one operation, as two that last equally long."""
    paired = np.isin(found.kind, list(PAIRS))
    if not paired.any():
        return found
    rows = np.concatenate([np.arange(found.kind.size), np.flatnonzero(paired)])
    kind = found.kind.astype(object)
    firsts = [PAIRS[one][0] if one in PAIRS else one for one in kind]
    seconds = [PAIRS[one][1] for one in kind[paired]]
    columns = {name: value[rows] for name, value in vars(found).items() if name not in ("path", "kind")}
    return Operations(path=found.path, kind=np.array([*firsts, *seconds]), **columns)

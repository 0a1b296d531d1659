"""PyTorch's flight recorder: the last collectives of every rank, from a pickle (nothing is executed) or from JSON.

A dump has `entries` (one per collective: group, sequence number, name, state), and `pg_config` with the ranks of each
process group. The ranks that lack a collective which others have entered are the ranks that the others wait for. A send
or receive waits for the one rank that its name tells.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.measurements.foreign.pickles import unpickle_plain
from paceline.measurements.trace.job import rank_in_name
from paceline.measurements.trace.stream import begin_of, read_content

__all__ = ["Dump", "Hang", "find_hangs", "looks_like_dump", "read_dump"]

MOST_BYTES = 1 << 26
PAIR = re.compile(r"\b(?:send|recv) \d{1,7}(?:->|<-)(\d{1,7})\b")
"""Name of a send or receive; the second number is the peer, counted within the group."""
COALESCED = "coalesced"
"""In the name of the entry that ends a batch of sends and receives; only this entry has the state of the batch."""
SAME_SIZES = re.compile(r"\b(?:all_?reduce|broadcast|_all_?gather_base|_reduce_scatter_base)$")
"""Collectives whose ranks have to give tensors of equal size."""
COMPLETED = "completed"
"""State of a completed collective."""
RETIRED = "retired"
"""State of a collective of Gloo that completed or failed, which its records do not distinguish."""
SETTING = (
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 make every rank write a dump "
    "(TORCH_NCCL_DEBUG_INFO_TEMP_FILE=PREFIX)"
)


@dataclass(frozen=True)
class Collective:
    """One entry of a dump."""

    group: str
    number: int
    name: str
    state: str
    sizes: tuple[Any, ...]
    place: str
    """Caller in the program: function, file and line; empty if the dump has no stacks."""
    key: str = ""
    """Internal name of the group, the key of `Dump.groups`."""
    pair: int = -1
    """Number of a send or receive, or of its batch; -1: it is a collective of all ranks."""

    @property
    def what(self) -> str:
        """The name, with the sizes that all ranks have to give."""
        return f"{self.name} of {', '.join(self.sizes)}" if SAME_SIZES.search(self.name) and self.sizes else self.name


@dataclass(frozen=True)
class Dump:
    """The flight recorder dump of one rank."""

    rank: int
    collectives: tuple[Collective, ...]
    groups: dict[str, tuple[int, ...]]
    """Ranks of each process group that the dump lists."""


@dataclass(frozen=True)
class Hang:
    """A collective that some ranks of a group entered and that did not complete."""

    group: str
    number: int
    name: str
    waiting: tuple[int, ...]
    """Ranks that entered it and did not leave it."""
    missing: tuple[int, ...]
    """Ranks of the group that never called it."""
    other: dict[int, str]
    """Ranks that called another collective under this number, and which."""
    no_dump: tuple[int, ...]
    """Ranks of the group without a dump."""
    culprits: tuple[int, ...]
    """Ranks that the others wait for, and that wait in no other collective themselves."""
    last: dict[int, str]
    """The last collective of each missing rank."""
    place: str


def looks_like_dump(path: Path) -> bool:
    """Whether a file begins as a pickle, or as JSON that has entries of a flight recorder."""
    begin = begin_of(path, 1 << 16)
    if begin[:1] == b"\x80" and begin[1:2] in b"\x02\x03\x04\x05":
        return True
    is_json = begin.lstrip()[:1] == b"{" and b'"traceEvents"' not in begin
    return is_json and (b'"entries"' in begin or b'"pg_config"' in begin)


def read_dump(path: Path, *, fallback_rank: int = 0) -> Dump:
    """The dump of one rank; its rank is in the document or at the end of the file's name."""
    document = _parsed(path, read_content(path, MOST_BYTES, "a smaller TORCH_NCCL_TRACE_BUFFER_SIZE"))
    entries = document.get("entries", [] if "pg_config" in document else None) if isinstance(document, dict) else None
    if not isinstance(entries, list):  # of a rank that called nothing yet, JSON has none
        raise InputError(f"{path} is no dump of a flight recorder: it has no list of `entries`", hint=SETTING)
    last = re.search(r"(\d{1,6})(?:\.[A-Za-z]\w*)*$", path.name)
    rank = document.get("rank", rank_in_name(path, int(last.group(1)) if last else fallback_rank))
    if not _is_count(rank):
        given = _word(rank) or f"a {type(rank).__name__}"
        raise InputError(f"{path}: rank: got {given}, expected the number of a rank", hint=SETTING)
    found = tuple(_collective(entry, path, number) for number, entry in enumerate(entries))
    return Dump(rank, found, _groups(document.get("pg_config")))


def _parsed(path: Path, content: bytes) -> Any:
    try:
        if content.lstrip()[:1] == b"{":
            return json.loads(content)
        return unpickle_plain(content)
    except RecursionError:
        raise InputError(f"{path} is too deeply nested for a dump of a flight recorder", hint=SETTING) from None
    except MemoryError:
        raise InputError(f"{path} is damaged: it asks for more memory than there is", hint=SETTING) from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle fails in many ways
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError(f"{path} is no sound dump of a flight recorder: {reason}", hint=SETTING) from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _collective(entry: Any, path: Path, number: int) -> Collective:
    given = entry if isinstance(entry, dict) else {}
    sequence = given.get("collective_seq_id", given.get("seq_id"))
    if not _is_count(sequence) or not isinstance(given.get("profiling_name"), str):
        raise InputError(f"{path}: entries[{number}]: expected a table with `collective_seq_id` and `profiling_name`",
                         hint=SETTING)  # fmt: skip
    group = given.get("process_group", given.get("pg_id", 0))
    names = [_word(part) for part in group[:2]] if isinstance(group, list | tuple) else [_word(group)]
    sizes, pair = given.get("input_sizes"), given.get("p2p_seq_id", 0)
    return Collective(
        group=names[-1] if len(names) > 1 and names[-1] not in ("", "undefined") else names[0] if names else "0",
        number=int(sequence or 0) if not given.get("is_p2p") else -1,
        name=given["profiling_name"][:80],
        state=_state(given),
        sizes=tuple(map(str, sizes[:4])) if isinstance(sizes, list | tuple) and _is_flat(sizes) else (),
        place=_place(given.get("frames")),
        key=names[0] if names else "",
        pair=int(pair) if given.get("is_p2p") and _is_count(pair) else -1,
    )


def _state(given: dict[str, Any]) -> str:
    state = _word(given.get("state", ""))[:40]
    if given.get("retired") is not True:
        return state
    return RETIRED if state == "scheduled" else COMPLETED


def _word(value: Any) -> str:
    """Text or a number for people; nothing of lists, which may repeat each other without end."""
    return str(value)[:80] if isinstance(value, str) or _is_count(value) else ""


def _is_flat(sizes: Sequence[Any]) -> bool:
    return all(
        isinstance(size, list | tuple) and len(size) < 10 and all(_is_count(n) for n in size) for size in sizes[:4]
    )


def _place(frames: Any) -> str:
    """The first frame that is not of PyTorch."""
    for frame in frames[:64] if isinstance(frames, list) else ():
        if isinstance(frame, dict) and isinstance(frame.get("filename"), str) and "/torch/" not in frame["filename"]:
            return f"{_word(frame.get('name', ''))[:60]} ({frame['filename'][-80:]}:{_word(frame.get('line', ''))[:9]})"
    return ""


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    for number, entry in config.items() if isinstance(config, dict) else ():
        given = entry if isinstance(entry, dict) else {}
        ranks = given.get("ranks")
        listed = [int(n) for n in re.findall(r"\d{1,7}", ranks)] if isinstance(ranks, str) else ranks
        if isinstance(listed, list | tuple) and all(_is_count(rank) for rank in listed):
            named = [given[key] for key in ("name", "desc") if isinstance(given.get(key), str)]
            groups |= {key: tuple(listed) for key in (_word(number), *named)}
    return groups


def find_hangs(dumps: Iterable[Dump]) -> tuple[Hang, ...]:
    """The first collective of each group that did not complete everywhere; those that block the others come first."""
    by_rank = {dump.rank: dump for dump in _told_apart(list(dumps))}
    tables: dict[str, dict[int, dict[int, Collective]]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in by_rank.items():
        for entry in dump.collectives:
            if entry.number >= 0:
                tables[entry.group][rank][entry.number] = entry
    members = {group: ranks for dump in by_rank.values() for group, ranks in dump.groups.items()}
    everybody = tuple(sorted(by_rank))
    hangs = [_hang(group, table, members.get(group) or everybody, by_rank) for group, table in tables.items()]
    found = [*(hang for hang in hangs if hang is not None), *_pair_hangs(by_rank, members)]
    waiting = {rank for hang in found for rank in hang.waiting}
    named = [_with_culprits(hang, waiting) for hang in found]
    return tuple(sorted(named, key=lambda hang: (not hang.culprits, hang.group, hang.number)))


def _told_apart(dumps: Sequence[Dump]) -> Iterator[Dump]:
    """The dumps, with the ranks in the name of groups of one description, such as those of a mesh."""
    ranks: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for dump in dumps:
        for group, key in {(one.group, one.key) for one in dump.collectives}:
            ranks[group].add(dump.groups.get(key, ()))
    for dump in dumps:
        names = {one.key: _with_ranks(one.group, dump.groups.get(one.key, ())) for one in dump.collectives
                 if len(ranks[one.group] - {()}) > 1}  # fmt: skip
        collectives = tuple(replace(one, group=names.get(one.key, one.group)) for one in dump.collectives)
        groups = {name: dump.groups[key] for key, name in names.items() if key in dump.groups}
        yield replace(dump, collectives=collectives, groups={**dump.groups, **groups})


def _with_ranks(group: str, ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}, {len(ranks)} of them"
    return f"{group} (ranks {named})" if ranks else group


def _hang(
    group: str, table: dict[int, dict[int, Collective]], ranks: tuple[int, ...], dumps: dict[int, Dump]
) -> Hang | None:
    reached = {rank: max(table.get(rank, (-1,))) for rank in ranks if rank in dumps}
    oldest = max(min(entries) for entries in table.values())
    # Only numbers that are there: a dump may leave some out, and name any.
    for number in sorted({number for rank in reached for number in table.get(rank, ()) if number >= oldest}):
        entries = {rank: table[rank][number] for rank in reached if rank in table and number in table[rank]}
        called = {rank: entry.name for rank, entry in entries.items()}
        if len(set(called.values())) == 1:  # of one name, they may differ in what all have to give
            called = {rank: entry.what for rank, entry in entries.items()}
        names = list(called.values())
        usual = max(sorted(set(names)), key=names.count)
        other = {rank: name for rank, name in called.items() if name != usual}
        missing = tuple(rank for rank in reached if reached[rank] < number)
        # The last collective of a rank that others never called cannot have completed.
        done = {rank: entry.state == COMPLETED or (entry.state == RETIRED and not (missing and number == reached[rank]))
                for rank, entry in entries.items()}  # fmt: skip
        waiting = tuple(rank for rank in entries if not done[rank] and rank not in other)
        if waiting and (missing or other or len(waiting) == len(entries)):
            last = {rank: _last(table[rank][reached[rank]]) if reached[rank] >= 0 else "" for rank in missing}
            absent = tuple(rank for rank in ranks if rank not in dumps)
            return Hang(
                group,
                number,
                entries[waiting[0]].name,
                waiting,
                missing,
                other,
                absent,
                (),
                last,
                entries[waiting[0]].place,
            )
    return None


def _last(entry: Collective) -> str:
    where = f", called in {entry.place}" if entry.place else ""
    return f"{entry.name} {max(entry.number, entry.pair)} ({entry.state}){where}"


def _pair_hangs(dumps: dict[int, Dump], members: dict[str, tuple[int, ...]]) -> Iterator[Hang]:
    """For each group, the sends and receives that did not complete, and the peers that wait in none."""
    stuck: dict[str, dict[int, list[Collective]]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for group, entries in _stuck_pairs(dump):
            stuck[group][rank] = entries
    for group, by_rank in stuck.items():
        ranks = dict(enumerate(members.get(group, ())))
        numbers = {int(peer[1]) for entries in by_rank.values() for one in entries if (peer := PAIR.search(one.name))}
        peers = sorted({ranks.get(number, number) for number in numbers} - set(by_rank))
        missing = tuple(rank for rank in peers if rank in dumps)
        last = {rank: _last(dumps[rank].collectives[-1]) if dumps[rank].collectives else "" for rank in missing}
        entry = min((entries[0] for entries in by_rank.values()), key=lambda one: one.pair)
        absent = tuple(rank for rank in peers if rank not in dumps)
        yield Hang(group, entry.pair, entry.name, tuple(sorted(by_rank)), missing, {}, absent, (), last, entry.place)


def _stuck_pairs(dump: Dump) -> Iterator[tuple[str, list[Collective]]]:
    """Groups in which this rank waits in a send or receive, and the first batch of these that did not complete."""
    batches: dict[str, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for entry in dump.collectives:
        if entry.pair >= 0:
            batches[entry.group][entry.pair].append(entry)
    for group, numbered in batches.items():
        for _, batch in sorted(numbered.items()):
            ends = [entry for entry in batch if COALESCED in entry.name] or batch
            if any(entry.state not in (COMPLETED, RETIRED) for entry in ends):
                yield group, [entry for entry in batch if COALESCED not in entry.name] or batch
                break


def _with_culprits(hang: Hang, waiting: set[int]) -> Hang:
    absent = hang.no_dump if len(hang.no_dump) <= len(hang.waiting) + len(hang.missing) + len(hang.other) else ()
    culprits = [rank for rank in (*hang.missing, *hang.other, *absent) if rank not in waiting]
    if len(hang.other) == len(hang.waiting):  # nobody is in the majority
        culprits = sorted({*culprits, *hang.waiting})
    return replace(hang, culprits=tuple(culprits))

"""The reason of a failed process: the line of its log that explains the failure, and a description of its exit.

A table of patterns, one per kind of failure. The first pattern of the table that occurs in the log explains the
failure; of several matches the first in the log counts. Causes come before consequences: a failed check before the
abort that follows it, the traceback of a process before MPI's message about it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal

__all__ = ["FailurePattern", "LogExplanation", "exit_description", "explain_log", "signal_of"]

LONGEST = 300
"""Characters of an explaining line that tables have room for."""

MOST = 2000
"""Maximum characters of a line that are searched."""

CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP")
"""Signals that a process brings upon itself; by others it was killed."""


@dataclass(frozen=True)
class FailurePattern:
    """One kind of failure in logs: a pattern whose groups `why` and, if present, `where` form the message."""

    name: str
    pattern: re.Pattern[str] | None
    """The pattern; None for Python tracebacks, which one pattern cannot describe."""
    out_of_memory: bool = False


@dataclass(frozen=True)
class LogExplanation:
    """The line that explains a death."""

    sign: str
    line: str
    out_of_memory: bool


def _kind(name: str, pattern: str, *, out_of_memory: bool = False) -> FailurePattern:
    return FailurePattern(name, re.compile(pattern, re.MULTILINE), out_of_memory)


_PREFIX = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:\s?|\[rank\d+\]:\s?|\[[\w.-]+:\d+\]\s|\d+:\s|\(\w+ pid=\d+[^)]*\)\s)")
"""Prefixes that mpirun, torchrun, srun and ray add to each line of a rank."""
_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_ALL = r"[^\n]*"
_MEMORY = {
    "memory of the device": (
        r"(?:CUDA|HIP|XPU|MPS(?: backend)?) out of memory", r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    ),
    "memory": (
        r"RESOURCE_EXHAUSTED: ", r"DefaultCPUAllocator|[Uu]nable to allocate|Cannot allocate memory",
        r"can't allocate memory", r"\bMemoryError(?:: |$)", r"std::bad_alloc",
    ),
    "memory by the kernel": (
        r"oom[-_]kill(?:er)?\b|OOM Killed", r"Out of memory: Kill|Memory cgroup out of memory",
    ),
}  # fmt: skip
_DEVICE = (
    r"(?:CUDA|cuDNN|CUBLAS|NCCL|HIP|RCCL) (?:error|failure|kernel errors)",
    r"\b(?:CUDA_ERROR_|cudaError|CUDNN_STATUS_(?!SUCCESS)|CUBLAS_STATUS_(?!SUCCESS))\w+",
    r"\bnccl(?:Unhandled\w+|SystemError|InternalError|RemoteError)",
)
_HEAP = (
    r"double free or corruption|(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted ",
    r"\*\*\* (?:stack smashing|buffer overflow)",
)
_THROWN = r"terminate called after throwing an instance of "

_GROUP = r"^ +\| (?P<where>[\w.]*ExceptionGroup): [^\n]*\n(?: [^\n]*\n)*? +\| (?P<why>[A-Za-z_][\w.]*: [^\n]*)"
"""A group of exceptions, by its first one."""

SIGNS = (
    *(_kind(name, rf"^(?P<why>{_ALL}(?:{part}){_ALL})", out_of_memory=True)
      for name, parts in _MEMORY.items() for part in parts),
    _kind("glog", r"^F\d{4,8} [\d:.]+\s+\d+ (?P<where>[^\s:\]]+:\d+)\] (?P<why>[^\n]*)"),
    _kind("glog of TensorFlow", r"^\d{4}-\d\d-\d\d [\d:.]+: F (?P<where>[^\s:\]]+:\d+)\] (?P<why>[^\n]*)"),
    _kind("dmlc check", r"^\[\d\d:\d\d:\d\d\] (?P<where>[^\s:]+:\d+): (?P<why>Check failed: [^\n]*)"),
    _kind("C++ exception", _THROWN + r"'(?P<where>[^'\n]+)'\n\s*what\(\):\s+(?P<why>[^\n]*)"),
    _kind("C++ exception", r"libc\+\+abi:? terminating (?:due to|with) uncaught exception of type (?P<why>[^\n]*)"),
    _kind("Python", _GROUP),
    FailurePattern("Python", None),
    _kind("Python", r"^(?P<why>(?:\S*/)?python[\d.]*: (?:No module named|can't open file) [^\n]*)"),
    _kind("missing library", r"^(?P<why>[^\n]*error while loading shared libraries: [^\n]*)"),
    _kind("missing symbol", r"^(?P<why>[^\n]*(?:symbol lookup error|undefined symbol): [^\n]*)"),
    _kind("assertion", r"^(?P<why>[^\n]*: Assertion `[^\n]*' failed\.?)"),
    _kind("check", r"(?P<where>[\w./-]{1,200}\.(?:cc|cpp|cu|cuh|h|hpp|cxx):\d+)\]?:? (?P<why>Check failed[^\n]*)"),
    *(_kind("device", rf"^(?P<why>{_ALL}(?:{part}){_ALL})") for part in _DEVICE),
    _kind("interpreter", r"^(?P<why>Fatal Python error: [^\n]*)"),
    *(_kind("C library", rf"^(?P<why>(?:{part}){_ALL})") for part in _HEAP),
    _kind("C++ exception", _THROWN + r"'(?P<why>[^'\n]+)'"),
    _kind("C++ exception", r"(?P<why>terminate called (?:without an active exception|recursively))"),
    _kind("MPI", r"^\*{3} An error occurred in (?P<where>MPI_\w+)(?:\n\*{3}[^\n]*)*?\n\*{3} (?P<why>MPI_ERR_[^\n]*)"),
    _kind("MPI", r"(?P<why>Fatal error in (?:internal_)?P?MPI_\w+: [^\n]*)"),
    _kind("MPI", r"(?P<why>MPI_ABORT was invoked on rank \d+[^\n]*(?:\n *[^\n]*errorcode -?\d+)?)"),
    _kind("MPI", r"(?P<why>application called MPI_Abort\([^\n]*)"),
    _kind("MPI", r"(?P<why>(?:mpirun|mpiexec|prterun|orterun) noticed that process rank \d+[^\n]*)"),
    _kind("scheduler", r"^(?:slurmstepd|srun): error: (?P<why>[^\n]*)"),
    _kind("segmentation fault", r"^(?P<why>Segmentation fault|Illegal instruction|Bus error|Floating point exception)"),
)  # fmt: skip
"""Kinds of failure, causes before consequences."""


def explain_log(log: str) -> LogExplanation | None:
    """The line of a log that explains the failure of its process, if there is one."""
    text = "\n".join(_PREFIX.sub("", _CODES.sub("", line[:MOST].rstrip("\r"))) for line in log.splitlines())
    for sign in SIGNS:
        match = sign.pattern.search(text) if sign.pattern else None
        line = _line(match) if match else "" if sign.pattern else _traceback(text)
        if line:
            return LogExplanation(sign.name, line[:LONGEST], sign.out_of_memory)
    return None


def _line(match: re.Match[str]) -> str:
    groups = match.groupdict()
    why = " ".join(groups["why"].split())
    where = (groups.get("where") or "").strip()
    return f"{where}: {why}" if where else why


_FRAMES = re.compile(
    r"^[ \t]*(?:Original )?Traceback \(most recent call last\):\n(?:[ \t]+[^\n]*\n|\n)*(?P<why>[A-Za-z_][\w.]*[^\n]*)",
    re.M,
)


def _traceback(text: str) -> str:
    """The messages of the last exception and of the first exception of its chain."""
    blocks = list(_FRAMES.finditer(text))
    if not blocks:
        return ""
    chain = [blocks[-1]]
    for block in reversed(blocks[:-1]):
        between = text[block.end() : chain[-1].start()]
        if "direct cause of the following exception" not in between and "During handling of the above" not in between:
            break
        chain.append(block)
    last, first = chain[0]["why"].strip(), chain[-1]["why"].strip()
    return last if first == last else f"{last[: LONGEST // 2]} (after {first[: LONGEST // 2]})"


def signal_of(code: int | None) -> str | None:
    """The name of the signal that ended a process, from its exit code as waitpid or as a shell gives it."""
    number = -code if code is not None and code < 0 else code - 128 if code is not None and 128 < code < 193 else 0
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def exit_description(code: int | None) -> Literal["crash", "killed"] | None:
    """Whether a signal that ended a process came from itself or from others; None without a signal."""
    name = signal_of(code)
    return None if name is None else "crash" if name in CRASHES else "killed"

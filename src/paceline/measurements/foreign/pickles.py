"""Plain data from a pickle, read as data: nothing is imported or executed, and memory stays in proportion to the file.

Python's own unpickler allocates as much memory as the file demands (one number of its memo can demand tens of
gigabytes), and hashes all keys, which takes exponential time for nested tuples.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

__all__ = ["unpickle_plain"]

LISTS = {f"torch.jit._pickle build_{kind}list" for kind in ("int", "tensor", "double", "bool")}
"""Lists as PyTorch's writer in C++ may name them: functions that return the list that they are given."""
LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8",
}  # fmt: skip
MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list, "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}  # fmt: skip
SKIPPED = {"PROTO", "FRAME"}
MOST_INSTRUCTIONS = 10_000_000
"""Each can make an object of up to 64 bytes; twenty thousand collectives with their frames take about five million."""


def unpickle_plain(content: bytes) -> Any:
    """Numbers, text, lists, tuples and tables; anything else is an `UnpicklingError` or another error."""
    machine = _Machine()
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if operation.name == "STOP":
            break
        if number >= MOST_INSTRUCTIONS:
            raise UnpicklingError(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
        machine.take(operation.name, argument)
    return machine.stack.pop()


class _Machine:
    """The stack and memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def take(self, name: str, argument: Any) -> None:
        """Execute one instruction."""
        if name in LITERALS:
            self.stack.append(argument)
        elif name in MADE:
            self.stack.append(MADE[name]())
        elif name.startswith("TUPLE"):
            self.stack.append(tuple(self._last(int(name[5:])) if name[5:] else self._since_mark()))
        elif name.endswith(("PUT", "MEMOIZE")):
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif name.endswith("GET"):
            if argument not in self._memo:
                raise UnpicklingError(f"it takes number {argument} of its memo, which holds no such number")
            self.stack.append(self._memo[argument])
        elif name not in SKIPPED:
            self._other(name, argument)

    def _other(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "MARK":
            self._marks.append(len(stack))
        elif name == "LIST":
            stack.append(self._since_mark())
        elif name == "DICT":
            stack.append(_filled({}, self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._last(1) if name == "APPEND" else self._since_mark()
            _expected(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._last(2) if name == "SETITEM" else self._since_mark()
            _filled(_expected(stack[-1], dict), items)
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            self._named(name, argument)

    def _named(self, name: str, argument: Any) -> None:
        """A function by its name, and its call: only functions that return the list that they are given."""
        if name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            what = str(argument) if argument is not None else " ".join(_expected(part, str) for part in self._last(2))
            if what not in LISTS:
                raise UnpicklingError(f"it would import {'.'.join(what.split(' '))[:120]}, which was not executed")
            self.stack.append(unpickle_plain)  # stands for any of them, and is never called
        elif name == "REDUCE":
            function, arguments = self._last(2)
            if function is not unpickle_plain:
                raise UnpicklingError("it calls what is no function")
            (given,) = arguments
            self.stack.append(_expected(given, list))
        else:
            raise UnpicklingError(f"it has an instruction that data do not need: {name}")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise UnpicklingError("it takes more than there is")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items


def _expected(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise UnpicklingError(f"a {type(value).__name__} stands where a {kind.__name__} is expected")
    return value


def _filled(table: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        table[_expected(key, str) if not isinstance(key, int) else key] = value
    return table

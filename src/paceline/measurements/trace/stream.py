"""Events of a JSON trace one at a time, in memory that does not grow with the file; gzip is read as it is.

A trace is a list of events, or an object whose `traceEvents` is that list and whose other fields are its head.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from paceline.errors import InputError

__all__ = ["AGAIN", "BROKEN", "EventStream", "open_trace"]

CHUNK = 1 << 20
LONGEST = 16 << 20
"""Characters of the longest event or field of the head; what is longer is no trace."""
MOST = 1 << 36
"""Characters of the largest trace, after decompression."""
NUMBER_TAIL = 3
"""Characters after a number that show that it is whole: `1` may be the begin of `1e-7`."""
GZIP = b"\x1f\x8b"
MARK = b"\xef\xbb\xbf"
"""Some editors begin UTF-8 with it."""
AGAIN = "record the trace again, and let `export_chrome_trace` end before the program does"
BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)


def open_trace(path: Path) -> IO[bytes]:
    """An open trace, decompressed if it is gzip; whatever is not a readable regular file is an InputError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(handle, "rb")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise InputError(f"{path} is not a regular file", hint="give the path of a trace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: {reason}", hint="give the path of a trace") from None
    begin = file.read(3)
    packed = begin.startswith(GZIP)
    file.seek(len(begin) if begin == MARK else 0)
    if not packed:
        return file
    unpacked = gzip.GzipFile(fileobj=file)
    unpacked.myfileobj = file  # type: ignore[assignment]  # closed together
    return unpacked  # type: ignore[return-value]


class EventStream:
    """Iterate once over the events of a trace; `head` then has the other fields of the document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.is_document = False
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at, self._read, self._ended = "", 0, 0, False
        self._file: io.TextIOWrapper

    def __iter__(self) -> Iterator[Any]:
        with open_trace(self.path) as raw:
            self._file = io.TextIOWrapper(raw, encoding="utf-8", errors="replace")
            begin = self._peek()
            if begin == "[":
                yield from self._elements(may_lack_end=True)
            elif begin == "{":
                self.is_document = True
                yield from self._document()
            else:
                raise InputError(f"{self.path} is not a JSON trace: it begins with {begin!r}", hint=AGAIN)

    def _document(self) -> Iterator[Any]:
        self._at += 1
        found = False
        while self._peek() != "}":
            name = self._value()
            if not isinstance(name, str) or self._peek() != ":":
                raise self._wrong("a field and its value")
            self._at += 1
            if name == "traceEvents" and self._peek() == "[":
                found = True
                yield from self._elements(may_lack_end=False)
            else:
                self.head[name] = self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise self._wrong("`,` or the end of the document")
        if not found:
            raise InputError(
                f"{self.path} holds no trace events", hint="expected a list, or an object with `traceEvents`"
            )

    def _elements(self, *, may_lack_end: bool) -> Iterator[Any]:
        self._at += 1
        while (sign := self._peek(may_end=may_lack_end)) != "]":
            if not sign:  # a timeline whose program still runs
                return
            yield self._value()
            sign = self._peek(may_end=may_lack_end)
            if sign == ",":
                self._at += 1
            elif sign and sign != "]":
                raise self._wrong("`,` or the end of the events")
        self._at += 1

    def _peek(self, *, may_end: bool = False) -> str:
        """The next sign that is no white space."""
        while True:
            text, at = self._text, self._at
            while at < len(text):
                if text[at] not in " \t\r\n":
                    self._at = at
                    return text[at]
                at += 1
            self._at = at
            if not self._more():
                if may_end:
                    return ""
                raise InputError(f"{self.path} is truncated: it ends inside the trace", hint=AGAIN)

    def _value(self) -> Any:
        """The next value; reads on until it is whole."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                raise InputError(f"{self.path}: an event is too deeply nested", hint=AGAIN) from None
            except ValueError as error:
                whole = not self._more()
                if whole or len(self._text) - self._at > LONGEST:
                    raise self._wrong("valid JSON", error) from None
                continue
            length = end - self._at
            if end + NUMBER_TAIL <= len(self._text) or not self._more():
                self._at += length  # reading on has moved the place
                return value

    def _more(self) -> bool:
        """Read the next part; false at the end of the file."""
        if self._ended:
            return False
        try:
            part = self._file.read(max(CHUNK, len(self._text) - self._at))
        except BROKEN as error:
            raise InputError(f"{self.path} is truncated or damaged: {error}", hint=AGAIN) from None
        self._text, self._at = self._text[self._at :] + part, 0
        self._read += len(part)
        self._ended = not part
        if self._read > MOST:
            raise InputError(f"{self.path} has more than {MOST >> 30} GiB", hint="profile fewer steps")
        return bool(part)

    def _wrong(self, expected: str, error: ValueError | None = None) -> InputError:
        place = self._read - len(self._text) + self._at
        given = self._text[self._at : self._at + 40]
        reason = f": {error}" if error is not None and not self._ended else ""
        how = "is truncated or damaged" if self._ended else "is damaged"
        return InputError(f"{self.path} {how} at character {place}{reason}: got {given!r}, expected {expected}",
                          hint=AGAIN)  # fmt: skip

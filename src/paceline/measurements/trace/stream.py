"""Events of a JSON trace one at a time, in memory that does not grow with the file; gzip and UTF-16 are read too.

A trace is a list of events, or an object whose `traceEvents` is that list and whose other fields are its head.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from paceline.errors import InputError

__all__ = ["AGAIN", "BROKEN", "ESCAPES", "EventStream", "begin_of", "check_growth", "open_trace", "read_content"]

CHUNK = 1 << 20
LONGEST = 16 << 20
"""Largest number of characters of an event, or of a field of the head, in a trace."""
MOST = 1 << 36
"""Characters of the largest trace, after decompression."""
GROWTH, FREE = 100, 1 << 28
"""Largest growth of a file when it is unpacked (traces and logs: 10 to 40 times), and a size that is always allowed."""
SPACES = re.compile(r"[ \t\r\n]*")
NUMBER_TAIL = 3
"""Characters after a number that show that it is whole: `1` may be the begin of `1e-7`."""
GZIP = b"\x1f\x8b"
MOST_LAYERS = 3
"""Largest number of nested compressions."""
MARK = b"\xef\xbb\xbf"
"""Some editors begin UTF-8 with it."""
WIDE = {"utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "utf-16": (b"\xff\xfe", b"\xfe\xff")}
"""How text of other encodings begins, as some shells write what a program prints."""
ARCHIVES = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z"}
AGAIN = "record the trace again, and let `export_chrome_trace` end before the program does"
UNESCAPED = "some versions of PyTorch do not escape quotes and backslashes in names of files: with_stack=False"
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Colours of a terminal."""
BROKEN = (EOFError, OSError, zlib.error)


def open_trace(path: Path) -> IO[bytes]:
    """An open trace, decompressed if it is gzip; whatever is not a readable regular file is an InputError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(handle, "rb")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise InputError(f"{path} is not a regular file", hint="give the path of a file that can be read")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: {reason}", hint="give the path of a file that can be read") from None
    return _plain(path, file)


def _plain(path: Path, file: IO[bytes]) -> IO[bytes]:
    """The content of a file: decompressed, as UTF-8, without a mark."""
    for layer in range(MOST_LAYERS + 1):
        begin = _begin(path, file)
        if not begin.startswith(GZIP):
            break
        if layer == MOST_LAYERS:
            file.close()
            raise InputError(f"{path} is compressed more than {MOST_LAYERS} times", hint="unpack it: gunzip")
        unpacked = gzip.GzipFile(fileobj=file, mode="rb")
        unpacked.myfileobj = file  # type: ignore[assignment]  # closed together
        file = unpacked  # type: ignore[assignment]
    archive = next((name for mark, name in ARCHIVES.items() if begin.startswith(mark)), None)
    if archive is not None:
        file.close()
        raise InputError(f"{path} is packed by {archive}", hint="unpack it first; only gzip is read as it is")
    encoding = _encoding(begin)
    if encoding is not None:
        return io.BufferedReader(_Recoded(file, encoding))
    file.seek(len(MARK) if begin.startswith(MARK) else 0)
    return file


def _begin(path: Path, file: IO[bytes]) -> bytes:
    """The first bytes; none of what is broken, which its reader finds."""
    try:
        begin: bytes | None = file.read(8)
    except BROKEN:
        begin = b""
    if begin is None:  # reading would wait
        file.close()
        raise InputError(f"{path} has nothing to read now", hint="give the path of a file that can be read")
    file.seek(0)
    return begin


def _encoding(begin: bytes) -> str | None:
    """UTF-16 or UTF-32, by the byte order mark, or by zero bytes between letters; None for UTF-8."""
    marked = next((name for name, marks in WIDE.items() if begin.startswith(marks)), None)
    even, odd = begin[0:8:2], begin[1:8:2]
    little, big = (len(begin) == 8 and not any(zeros) and chars.isascii() and all(chars)
                   for chars, zeros in ((even, odd), (odd, even)))  # fmt: skip
    return marked or ("utf-16-le" if little else "utf-16-be" if big else None)


class _Recoded(io.RawIOBase):
    """Text of another encoding as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._text, self._rest = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=""), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or self._text.read(CHUNK).encode(errors="replace")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._text.close()
        super().close()


def begin_of(path: Path, most: int, hint: str = AGAIN) -> bytes:
    """The first bytes of a file, decompressed and as UTF-8."""
    with open_trace(path) as file:
        try:
            return file.read(most)
        except BROKEN as error:
            raise InputError(f"{path} is truncated or damaged: {error}", hint=hint) from None


def read_content(path: Path, most: int, hint: str) -> bytes:
    """All of a file that is small enough, decompressed and as UTF-8."""
    content = begin_of(path, most + 1, hint)
    if len(content) > most:
        raise InputError(f"{path} has more than {most >> 20} MiB", hint=hint)
    return content


def check_growth(path: Path, size: int) -> None:
    """Refuse a file that was made to be large once it is unpacked."""
    if size > max(FREE, GROWTH * path.stat().st_size):
        raise InputError(f"{path} grows more than {GROWTH} times when it is unpacked, and that is no trace and no log",
                         hint="copy it again; if it is sound, unpack it: gunzip")  # fmt: skip


class EventStream:
    """Iterate once over the events of a trace; `head` then has the other fields of the document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.is_document = False
        self._decode = json.JSONDecoder(strict=False).raw_decode  # names may hold control characters
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
            if self._peek(may_end=True):
                raise self._wrong("nothing after the trace")

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
        self._at += 1
        if not found and "nodes" in self.head:
            raise InputError(f"{self.path} is an execution trace of PyTorch: nodes of a graph, without durations",
                             hint="import the trace that torch.profiler wrote in the same run")  # fmt: skip
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
            self._at = SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing as well
            if self._at < len(self._text):
                return self._text[self._at]
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
                if len(self._text) - self._at > LONGEST or not self._more():
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
        check_growth(self.path, self._read)
        if self._read > MOST:
            raise InputError(f"{self.path} has more than {MOST >> 30} GiB", hint="profile fewer steps")
        return bool(part)

    def _wrong(self, expected: str, error: ValueError | None = None) -> InputError:
        place = self._read - len(self._text) + self._at
        given = self._text[self._at : self._at + 40]
        reason = f": {error}" if error is not None and not self._ended else ""
        how = "is truncated or damaged" if self._ended else "is damaged"
        again = AGAIN if self.is_document else "cut the last event if the program ended inside it, or record again"
        hint = f"{again}; {UNESCAPED}" if error is not None else again
        return InputError(f"{self.path} {how} at character {place}{reason}: got {given!r}, expected {expected}",
                          hint=hint)  # fmt: skip

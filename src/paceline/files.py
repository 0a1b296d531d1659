"""Atomic creation of files and directories: write under a temporary name, fsync, rename.

A reader sees the old content or the new content, never a mixture; with `durable` that also holds after a
power failure. Standard library and Python 3.9 only, as training processes import this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

__all__ = ["atomic_directory", "atomic_write", "printable", "read_regular", "remove_abandoned", "sync", "write_output"]

if TYPE_CHECKING:
    Content = str | bytes | Callable[[IO[bytes]], object]

_MARK = ".tmp-"
_KEPT_NAME = 120
"""Bytes of a file's name in that of its temporary file, so that a long name does not become too long."""
_DIGITS = 10
"""Of the number of a process there are fewer: Linux has at most 4,194,304 of them."""


def atomic_write(path: Path, content: Content, *, durable: bool = True, previous: Path | None = None) -> None:
    """Replace a file by this content; the directory must exist.

    Content is text (written as UTF-8), bytes, or a function that writes to the open file. A file that is replaced is
    kept under the name `previous`, if one is given. `durable=False` skips fsync, for files that are not needed
    after a reboot. A replaced file passes on its permissions. A device is refused: it would be gone afterwards.
    """
    mode = _replaced_mode(path)
    name = os.fsdecode(os.fsencode(path.name)[:_KEPT_NAME])
    # The name is random, and mode `x` does not follow links of other users in a shared directory.
    temporary = path.with_name(f"{name}{_MARK}{_owner()}-{os.urandom(6).hex()}")
    try:
        with _opened(temporary, path) as file:
            if mode is not None:
                with contextlib.suppress(OSError):  # of file systems without permissions
                    os.fchmod(file.fileno(), mode)
            _write(file, content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _opened(temporary: Path, path: Path) -> IO[bytes]:
    """The new temporary file; an error names the file that it would have become."""
    try:
        return temporary.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _replaced_mode(path: Path) -> int | None:
    """The permissions of the regular file that is to be replaced; OSError for a device."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "a device, expected a file", str(path))
    return mode & 0o777 if stat.S_ISREG(mode) else None


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named: atomically, or directly if it is a pipe or a device such as /dev/stdout.

    A symbolic link is followed, as by a shell. A FIFO without a reader is an error at once.
    """
    if str(path).startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file()):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "wb") as file:
            os.set_blocking(handle, True)
            _write(file, content)
    else:
        atomic_write(path.resolve() if path.is_symlink() else path, content)


def _write(file: IO[bytes], content: Content) -> None:
    if isinstance(content, (str, bytes)):
        file.write(content.encode() if isinstance(content, str) else content)
    else:
        content(file)


def read_regular(path: Path, *, most: int | None = None, follow: bool = False, tail: int | None = None) -> bytes:
    """The content of a regular file, at most `most` bytes of it, or its last `tail` bytes; never waits.

    A FIFO, a device, a directory and (unless `follow`) a symbolic link are an OSError whose text says so.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link, expected a file", str(path)) from None
        raise
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        try:
            if tail is not None:
                file.seek(max(0, found.st_size - tail))
            content: bytes | None = file.read(tail if tail is not None else -1 if most is None else most)
        except OSError as error:  # of a disk that fails, which says no name
            raise OSError(error.errno, error.strerror, str(path)) from None
    if content is None:  # what the kernel shows as a file may have nothing to say yet
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
    return content


@contextlib.contextmanager
def atomic_directory(target: Path, *, scratch: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """A temporary directory that becomes `target` when the block ends without an exception, and is removed otherwise.

    If another process has made `target` meanwhile, its directory is kept and this one is removed. The temporary
    directory is made in `scratch`, which must be on the same file system, or by default beside the target.
    """
    parent = scratch or target.parent
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}{_MARK}{_owner()}-", dir=parent))
    try:
        yield folder
        if durable:
            for item in (*folder.rglob("*"), folder):
                if not item.is_symlink():
                    sync(item)
        try:
            folder.rename(target)
        except OSError:  # another process made it first, perhaps just now
            if not target.is_dir():
                raise
        if durable:
            sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(scratch: Path, *, name: str = "") -> int:
    """Remove temporary entries, or those of one file, of processes of this host that no longer run; their number."""
    entries = [path for path in scratch.iterdir() if path.name.startswith(name)] if scratch.is_dir() else []
    gone = [path for path in entries if _owner_is_gone(path.name)]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return len(gone)


def printable(text: str, *, lines: bool = False) -> str:
    """Text for people: bytes that are no text, and commands to the terminal, as escapes; `lines`: of several lines."""
    if text.isprintable():
        return text
    kept = "\n\t\xa0" if lines else "\xa0"
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)


def sync(path: Path) -> None:
    """Fsync a file, or the entries of a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _owner_is_gone(name: str) -> bool:
    """Whether a name such as `run.tmp-HOST-PID-RANDOM` belongs to a process of this host that no longer runs."""
    host, _, rest = name.rpartition(_MARK)[2].rpartition("-")[0].rpartition("-")
    if host != socket.gethostname() or not (rest.isdecimal() and len(rest) < _DIGITS):
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False

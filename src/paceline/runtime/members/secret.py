"""The secret of a job: from the environment, from a file that only its user can read, or generated for the ranks of one
host. It is never sent through torchrun's store, which any process can read.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from paceline import variables
from paceline.errors import InputError

__all__ = ["given_secret", "local_secret", "seal_endpoint", "unseal_endpoint"]

SHORTEST = 16
"""Least number of characters: a process that receives a connection can test guesses against the received proof."""
MAKE = 'python3 -c "import secrets; print(secrets.token_hex(32))"'


def given_secret(env: Mapping[str, str] = os.environ) -> bytes | None:
    """The secret from the user or from `paceline train`; None if there is none."""
    text = env.get(variables.SECRET)
    where = variables.SECRET
    if not text and env.get(variables.SECRET_FILE):
        path = Path(env[variables.SECRET_FILE])
        text, where = _read_private(path).strip(), str(path)
    if not text:
        return None
    if len(text) < SHORTEST:
        raise InputError(f"the secret in {where} has {len(text)} characters, at least {SHORTEST} are needed", hint=MAKE)
    return text.encode(errors="surrogateescape")  # keep bytes that are not valid text


def local_secret(env: Mapping[str, str] = os.environ) -> bytes:
    """A generated secret for ranks that torchrun started on this host; refused if some ranks are on other hosts."""
    if env.get("LOCAL_WORLD_SIZE") != env.get("WORLD_SIZE"):
        raise InputError(
            "torchrun started ranks on several hosts, and they have no secret to know each other by",
            hint=f"on one host: export {variables.SECRET}=$({MAKE}); on the others set the same value; then torchrun",
        )
    parts = [env.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")]
    # All ranks have the same parent, torchrun's agent; its start time distinguishes it from an earlier process with
    # the same process id.
    parent = os.getppid()
    parts += [str(parent), _start_of(parent)]
    path = _private_folder() / f"job-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:24]}"
    if env.get("RANK") == "0":
        atexit.register(path.unlink, missing_ok=True)
    return _made_once(path).encode()


def seal_endpoint(secret: bytes, session: str, endpoint: str) -> str:
    """An endpoint with a proof, for a store to which any process can write."""
    return f"{endpoint} {_proof(secret, session, endpoint)}"


def unseal_endpoint(secret: bytes, session: str, text: str) -> str | None:
    """The endpoint; None if the proof was not made with the secret."""
    endpoint, _, proof = text.partition(" ")
    good = hmac.compare_digest(proof.encode(errors="replace"), _proof(secret, session, endpoint).encode())
    return endpoint if good else None


def _proof(secret: bytes, session: str, endpoint: str) -> str:
    content = f"paceline endpoint\n{session}\n{endpoint}".encode(errors="replace")
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def _made_once(path: Path) -> str:
    """The content of the file, which the first of the ranks makes: the name appears with all of its content."""
    # Not by the number of the process: one that was killed here has left its draft, and numbers come again.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return _read_private(path)


def _private_folder() -> Path:
    """A folder that only this user can access."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"paceline-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise InputError(
            f"no folder for the secret of the ranks: {folder}: {error.strerror}",
            hint=f"set XDG_RUNTIME_DIR or TMPDIR to a folder of yours, or set {variables.SECRET}",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InputError(f"{folder} is not a folder of this user alone", hint=f"remove it, or set {variables.SECRET}")
    return folder


def _read_private(path: Path) -> str:
    """The content of a file that only this user can read and write; other files are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"the secret in {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.getuid()) or found.st_mode & 0o077:
            raise InputError(f"{path} holds a secret, and others can read or change it", hint=f"chmod 600 {path}")
        return file.read(4096)


def _start_of(process: int) -> str:
    """Start time of a process in clock ticks of the kernel."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

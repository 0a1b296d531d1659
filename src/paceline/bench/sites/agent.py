"""The agent that an engine starts on a host: it runs one process and ends it when its connection breaks.

    python3 agent.py ADDRESSES PORT TOKEN

It connects to the launcher, reports its host, receives the command to run, and returns the exit code, with log and
events where no file system is shared. One file, standard library only: its source travels as an argument, so that
nothing needs to be installed on a host. Every message is a line of JSON.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tarfile
from typing import Any, TextIO

__all__ = ["main"]

SIOCGIFADDR = 0x8915
TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Extraction of archives trusts the launcher, which can run any command on this host."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def main(addresses: str, port: str, token: str) -> int:
    """Run one process and exit with its exit code."""
    connection = connect(addresses.split(","), int(port))
    lines = connection.makefile("r", encoding="utf-8")
    send(
        connection,
        {"token": token, "host": socket.gethostname(), "address": connection.getsockname()[0], "pid": os.getpid()},
    )
    request = json.loads(lines.readline() or "null")
    if request is None:
        return 1
    shared = os.path.exists(request["marker"])
    if not shared:
        receive_files(connection, lines, request)
    code = run(connection, request)
    files = {} if shared else {path: read(path) for path in request["returned"]}
    send(connection, {"exit": code, "files": files})
    return 0


def connect(addresses: list[str], port: int) -> socket.socket:
    """The first of the launcher's addresses that answers."""
    last = OSError("no address to connect to")
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=10)
        except OSError as error:
            last = error
            continue
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return connection
    raise last


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """One message."""
    connection.sendall((json.dumps(message) + "\n").encode())


def receive_files(connection: socket.socket, lines: TextIO, request: dict[str, Any]) -> None:
    """Request missing files: those of the launch folder, the environment, the package."""
    os.makedirs(request["folder"], exist_ok=True)
    missing = [path for path in request["needed"] if not os.path.exists(path)]
    send(connection, {"missing": [request["folder"], *missing]})
    while True:
        message = json.loads(lines.readline())
        if "end" in message:
            return
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(message["tar"]))) as archive:
            for member in archive:
                archive.extract(member, "/", **TRUSTED)


def run(connection: socket.socket, request: dict[str, Any]) -> int:
    """The process's exit code; it is killed with all its children when the connection breaks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(tuple(request["dropped"]))}
    env.update(request["env"])
    own = interface_of(connection.getsockname()[0])
    for name in INTERFACE_VARIABLES:
        if own and name not in request["env"]:
            env[name] = own
    with open(request["log"], "ab") as log:
        try:
            process = subprocess.Popen(
                request["argv"],
                env=env,
                cwd=request["folder"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            log.write(f"cannot start {request['argv'][0]} on {socket.gethostname()}: {error}\n".encode())
            return 127
    send(connection, {"started": process.pid})
    return wait(connection, process)


def wait(connection: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """Wait until the process ends; a message or a closed connection from the launcher ends the process."""
    ended = os.pidfd_open(process.pid)
    watched: list[Any] = [ended, connection]
    while not select.select(watched, [], [])[0]:
        pass
    code = process.poll()
    if code is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            kill_group(process.pid, number)
            if select.select([ended], [], [], 2.0)[0]:
                break
        code = process.wait()
    kill_group(process.pid, signal.SIGKILL)
    return code


def kill_group(pid: int, number: int) -> None:
    """Kill the remaining processes of a session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def die_with_parent() -> None:
    """Let the kernel kill this process when the agent dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def interface_of(address: str) -> str | None:
    """The name of the interface that holds an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def read(path: str) -> str:
    """A file's text, empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))

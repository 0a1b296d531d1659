"""The far end of a leash: started on a host by any engine, it runs one process and ends it when the leash breaks.

    python3 agent.py ADDRESSES PORT TOKEN

It connects to the launcher, says where it is, receives what to run, and sends back how that ended, with its log and
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
"""The launcher is trusted: it could run anything here anyway."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def main(addresses: str, port: str, token: str) -> int:
    """Serve one process, then end as it ended."""
    leash = connect(addresses.split(","), int(port))
    lines = leash.makefile("r", encoding="utf-8")
    send(leash, {"token": token, "host": socket.gethostname(), "address": leash.getsockname()[0], "pid": os.getpid()})
    order = json.loads(lines.readline() or "null")
    if order is None:
        return 1
    shared = os.path.exists(order["marker"])
    if not shared:
        receive_files(leash, lines, order)
    code = run(leash, order)
    files = {} if shared else {path: read(path) for path in order["returned"]}
    send(leash, {"exit": code, "files": files})
    return 0


def connect(addresses: list[str], port: int) -> socket.socket:
    """The first of the launcher's addresses that answers."""
    last = OSError("no address to call")
    for address in addresses:
        try:
            leash = socket.create_connection((address, port), timeout=10)
        except OSError as error:
            last = error
            continue
        leash.settimeout(None)
        leash.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
            leash.setsockopt(socket.IPPROTO_TCP, option, value)
        return leash
    raise last


def send(leash: socket.socket, message: dict[str, Any]) -> None:
    """One message."""
    leash.sendall((json.dumps(message) + "\n").encode())


def receive_files(leash: socket.socket, lines: TextIO, order: dict[str, Any]) -> None:
    """Ask for what is not here: the folder's files always, environment and package if they are missing."""
    os.makedirs(order["folder"], exist_ok=True)
    missing = [path for path in order["needed"] if not os.path.exists(path)]
    send(leash, {"missing": [order["folder"], *missing]})
    while True:
        message = json.loads(lines.readline())
        if "end" in message:
            return
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(message["tar"]))) as archive:
            for member in archive:
                archive.extract(member, "/", **TRUSTED)


def run(leash: socket.socket, order: dict[str, Any]) -> int:
    """The process's exit code; it is killed with all its children when the leash breaks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(tuple(order["dropped"]))}
    env.update(order["env"])
    own = interface_of(leash.getsockname()[0])
    for name in INTERFACE_VARIABLES:
        if own and name not in order["env"]:
            env[name] = own
    with open(order["log"], "ab") as log:
        try:
            process = subprocess.Popen(
                order["argv"],
                env=env,
                cwd=order["folder"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            log.write(f"cannot start {order['argv'][0]} on {socket.gethostname()}: {error}\n".encode())
            return 127
    send(leash, {"started": process.pid})
    return wait(leash, process)


def wait(leash: socket.socket, process: subprocess.Popen[bytes]) -> int:
    """Until the process ends; the launcher saying anything more, or nothing ever more, ends it."""
    ended = os.pidfd_open(process.pid)
    watched: list[Any] = [ended, leash]
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
    """End what is left of a process's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def die_with_parent() -> None:
    """Be killed when the agent is."""
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

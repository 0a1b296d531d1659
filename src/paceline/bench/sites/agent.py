"""The agent that an engine starts on a host: it runs one process and ends it when its connection breaks.

    python3 agent.py ADDRESSES PORT      calls the launcher; the token of the launch is in PACELINE_AGENT_TOKEN
    python3 agent.py ADDRESSES -         uses standard input and output, inside ssh; the token is the first line

It reports its host, receives the command to run, and returns the exit code, with log and events where no file system
is shared. Its source and that of the channel travel as an argument, so that hosts need only Python 3.9.
"""

from __future__ import annotations

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
import threading
from typing import Any

from paceline import variables
from paceline.channel.frames import SecureConnection, call_connected, open_connection
from paceline.channel.handshake import Login

__all__ = ["main"]

READY = b"\npaceline agent\n"
"""First output of the agent: login shells may print text before it."""
SIOCGIFADDR = 0x8915
TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Extraction of archives trusts the launcher, which can run any command on this host."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
LOGIN_TIMEOUT = 20.0
LAST_TIMEOUT = 60.0
"""Seconds for the last message to leave, which holds log and events."""
WRITERS: list[threading.Thread] = []
"""Threads that must end before this process exits, because they write to standard output."""


def main(addresses: str, port: str) -> int:
    """Run one process and exit with its exit code."""
    connection, address = connect(addresses.split(","), port)
    connection.send_plain({"host": socket.gethostname(), "address": address, "pid": os.getpid()})
    try:
        request = connection.receive_plain()
    except ConnectionError:
        return 1
    shared = os.path.exists(request["marker"])
    if not shared:
        receive_files(connection, request)
    code = run(connection, request, address)
    files = {} if shared else {path: read(path) for path in request["returned"]}
    sizes = [[path, len(content)] for path, content in files.items()]
    connection.send(dump({"exit": code, "files": sizes}), b"".join(files.values()))
    connection.wait_sent(LAST_TIMEOUT)
    connection.end_sending()
    for thread in WRITERS:
        thread.join(LAST_TIMEOUT)
    return 0


def connect(addresses: list[str], port: str) -> tuple[SecureConnection, str]:
    """The connection to the launcher, and the address by which other hosts reach this one."""
    if port == "-":
        token = sys.stdin.buffer.readline().strip()
        connection = call_connected(
            _standard_streams(), Login(token, "agent"), listener="launcher", timeout=LOGIN_TIMEOUT
        )
        return connection, own_address(addresses)
    login = Login(os.environ.pop(variables.AGENT_TOKEN).encode(), "agent")
    last: OSError = ConnectionError("no address to connect to")
    for address in addresses:
        try:
            connection = open_connection(address, int(port), login, listener="launcher", timeout=10)
            return connection, connection.own_address
        except OSError as error:
            last = error
    raise last


def _standard_streams() -> socket.socket:
    """A socket that replaces standard input and output."""
    mine, other = socket.socketpair()
    output = os.dup(1)
    os.dup2(2, 1)  # nothing else may write there
    os.write(output, READY)

    def take_in() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, 1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def give_out() -> None:
        with contextlib.suppress(OSError):
            while data := other.recv(1 << 16):
                view = memoryview(data)
                while view:
                    view = view[os.write(output, view) :]

    threading.Thread(target=take_in, daemon=True).start()
    WRITERS.append(threading.Thread(target=give_out, daemon=True))
    WRITERS[0].start()
    return mine


def own_address(addresses: list[str]) -> str:
    """The address at which ssh reached this host, or, if that is loopback, the one that leads to the launcher."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and ":" not in words[2] and not words[2].startswith("127."):
        return words[2]
    for address in addresses:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((address, 9))
            return str(way.getsockname()[0])
    return "127.0.0.1"


def dump(message: dict[str, Any]) -> bytes:
    """One message without data as text."""
    return json.dumps(message).encode()


def receive_files(connection: SecureConnection, request: dict[str, Any]) -> None:
    """Request missing files: those of the launch folder, the environment, the package."""
    os.makedirs(request["folder"], exist_ok=True)
    missing = [path for path in request["needed"] if not os.path.exists(path)]
    connection.send_plain({"missing": [request["folder"], *missing]})
    while True:
        text, data = connection.receive()
        if "end" in json.loads(text):
            return
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                archive.extract(member, "/", **TRUSTED)


def run(connection: SecureConnection, request: dict[str, Any], address: str) -> int:
    """The process's exit code; it is killed with all its children when the connection breaks."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(tuple(request["dropped"]))}
    env.update(request["env"])
    own = interface_of(address)
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
    connection.send_plain({"started": process.pid})
    return wait(connection, process)


def wait(connection: SecureConnection, process: subprocess.Popen[bytes]) -> int:
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


def read(path: str) -> bytes:
    """A file's content, empty if there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))

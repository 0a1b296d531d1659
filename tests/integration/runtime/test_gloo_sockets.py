"""A group of Gloo hears nobody once it is connected, and an abandoned one gives back what it used."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports
from paceline.runtime.group.gloo_sockets import cut_connections

RANK = """
import gc, json, os, socket, sys, threading, time
import torch, torch.distributed as dist
from paceline.runtime.group.wire import BoardStore, Broken, Wire

rank, ports = int(sys.argv[1]), json.loads(sys.argv[2])

class Board:
    def __init__(self, port): self.store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    def put(self, view, key, value): self.store.set(key, value)
    def read(self, view, key): return self.store.get(key)
    def has(self, view, key): return self.store.check([key])

def answers(endpoint):
    try:
        socket.create_connection(endpoint, timeout=0.5).close()
    except OSError:
        return False
    return True

found, boards = [], []
for view, port in enumerate(ports):
    boards.append(Board(port))
    interrupted = threading.Event()
    wire = Wire(BoardStore(boards[-1], view, "p"), rank, 2, address="127.0.0.1", interrupted=interrupted)
    tensor = torch.ones(10)
    wire.all_reduce(tensor)()
    heard = [answers(endpoint) for endpoint in wire._endpoints]
    tensor2 = torch.ones(10)
    wire.all_reduce(tensor2)()
    if rank == 0:
        # The peer takes no part, as if it were suspended: the operation never ends by itself.
        wait = wire.all_reduce(torch.ones(1_000_000))
        interrupted.set()
        try:
            wait()
        except Broken:
            pass
        wire.leave()
        del wait
        boards.pop()
        open(f"{sys.argv[3]}/left-{view}", "w").close()
    else:
        while not os.path.exists(f"{sys.argv[3]}/left-{view}"):
            time.sleep(0.05)
    if rank == 0:
        del wire
        gc.collect()
        time.sleep(0.2)
        used = [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]
        found.append({"sum": float(tensor2[0]), "heard": heard, "used": used})
print(json.dumps(found), flush=True)
os._exit(0)
"""

CONNECTING = """
import datetime, json, os, sys, threading, time
import torch, torch.distributed as dist
from paceline.runtime.group import wire
from paceline.runtime.group.gloo_sockets import endpoints_of, ignore_callers
from paceline.runtime.group.wire import BoardStore, Broken, Wire

rank, ports = int(sys.argv[1]), json.loads(sys.argv[2])
wire.CONNECT_TIMEOUT = datetime.timedelta(seconds=1)

class Board:
    dies = False
    def __init__(self, port): self.store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    def put(self, view, key, value):
        if self.dies:  # before it accepts what connects at once
            ignore_callers(endpoints_of([value]))
        self.store.set(key, value)
        if self.dies:
            os._exit(0)
    def read(self, view, key): return self.store.get(key)
    def has(self, view, key): return self.store.check([key])

interrupted = threading.Event()
first = Wire(BoardStore(Board(ports[0]), 0, "p"), rank, 2, address="127.0.0.1", interrupted=interrupted)
if rank == 1:
    time.sleep(2.5)
tensor = torch.ones(10)
first.all_reduce(tensor)()
board = Board(ports[1])
used = lambda: [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]
time.sleep(0.5)  # until the threads of the store are there
before, why = used(), "connected"
Board.dies = rank == 1
threading.Timer(0.5, interrupted.set).start()
try:
    Wire(BoardStore(board, 1, "p"), rank, 2, address="127.0.0.1", interrupted=interrupted)
except Broken as error:
    why = str(error)
at_once = any(thread.name == "paceline-connect" for thread in threading.enumerate())
for thread in threading.enumerate():
    if thread.name == "paceline-connect":
        thread.join(20)
deadline = time.monotonic() + 10
while max(used()[i] - before[i] for i in (0, 1)) > 0 and time.monotonic() < deadline:
    time.sleep(0.1)
found = {"sum": float(tensor[0]), "why": why, "at_once": at_once, "before": before, "after": used()}
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.full
def test_a_rank_that_dies_while_it_connects_leaves_nothing_behind(torch_python: Path) -> None:
    """Each such death left two threads and four descriptors for an hour; the exchange itself may wait for long."""
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    ports, argv = json.dumps(free_ports(2)), [str(torch_python), "-c", CONNECTING]
    other = subprocess.Popen([*argv, "1", ports], env=env, stdout=subprocess.DEVNULL)
    first = subprocess.run([*argv, "0", ports], env=env, capture_output=True, text=True, timeout=120, check=False)
    other.kill()
    other.wait()
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["sum"] == 2.0, "a peer that is later than a connection may be"
    assert found["why"] == "the group changed while it was being connected"
    assert found["at_once"], "nobody waits for the attempt"
    assert all(after <= before for after, before in zip(found["after"], found["before"], strict=True)), found


@pytest.mark.full
def test_an_abandoned_group_gives_back_threads_and_descriptors(torch_python: Path, tmp_path: Path) -> None:
    """Findings 10 and 18: ten suspended peers left 30 threads and 60 descriptors, and anybody could call Gloo."""
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    ports = json.dumps(free_ports(3))
    argv = [str(torch_python), "-c", RANK]
    other = subprocess.Popen([*argv, "1", ports, str(tmp_path)], env=env, stdout=subprocess.DEVNULL)
    first = subprocess.run(
        [*argv, "0", ports, str(tmp_path)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    other.kill()
    other.wait()
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert [view["sum"] for view in found] == [2.0] * 3
    assert not any(answer for view in found for answer in view["heard"])
    assert all(len(view["heard"]) == 2 for view in found), "where both ranks listen was found on the board"
    assert len({tuple(view["used"]) for view in found[1:]}) == 1, f"flat from view to view: {found}"


def test_a_connection_that_its_peer_has_reset_is_no_error() -> None:
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        assert cut_connections(frozenset([gone.getsockname()])) == 1

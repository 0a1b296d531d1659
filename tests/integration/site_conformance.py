"""What every site must do, whatever launcher opened it; run as a script, it checks the launcher that --on names.

python -m tests.integration.site_conformance ON CLUSTER.toml FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.sites.site import Launch, Launcher, Process, Rendezvous
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.catalog import cluster as cluster_of
from paceline.errors import LaunchFailed
from paceline.spec.cluster import Cluster, place

FIRST = """
import socket, sys
with socket.create_server(("", int(sys.argv[2]))) as server:
    connection, _ = server.accept()
    print("rank 0 received", connection.recv(9).decode(), flush=True)
"""
SECOND = """
import socket, sys, time
for _ in range(100):
    try:
        connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)
        break
    except OSError:
        time.sleep(0.1)
connection.sendall(b"greetings")
sys.exit(3)
"""
SLEEPER = "import time; print('asleep', flush=True); time.sleep(600)"


def check_launcher(launcher: Launcher, cluster: Cluster, folder: Path) -> None:
    """Open one site after the other, and see each do what it must."""
    (folder / "job.json").write_text("{}", encoding="utf-8")
    with launcher:
        _ranks_connect_and_codes_come_back(launcher, cluster, folder)
        _closing_ends_what_runs(launcher, cluster, folder)
        _ports_as_asked(launcher, cluster)


def _ranks_connect_and_codes_come_back(launcher: Launcher, cluster: Cluster, folder: Path) -> None:
    with launcher.open(cluster, 2) as site:
        assert len(set(site.rendezvous.ports)) == 4 + 2, "shared ports, and one for each rank"
        port = str(site.rendezvous.ports[4])
        launch = site.start(_processes(cluster, folder, site.rendezvous, (FIRST, SECOND), port))
        assert set(launch.poll()) == {"rank 0", "rank 1"}
        codes = _wait(launch.poll, lambda codes: None not in codes.values())
        assert codes == {"rank 0": 0, "rank 1": 3}, f"{codes} {_log(folder, 0)} {_log(folder, 1)}"
        again = _processes(cluster, folder, site.rendezvous, (FIRST, SECOND), str(site.rendezvous.ports[5]))
        later = site.start(again)
        codes = _wait(later.poll, lambda codes: None not in codes.values())
        assert codes == {"rank 0": 0, "rank 1": 3}, "a site starts processes more than once"
        assert launch.poll() == {"rank 0": 0, "rank 1": 3}, "each launch knows its own processes"
    assert _log(folder, 0).count("rank 0 received greetings") == 2


def _closing_ends_what_runs(launcher: Launcher, cluster: Cluster, folder: Path) -> None:
    site = launcher.open(cluster, 2)
    processes = _processes(cluster, folder, site.rendezvous, (SLEEPER, SLEEPER), "0")
    launch: Launch = site.start(processes)
    time.sleep(0.5)
    assert launch.poll() == {"rank 0": None, "rank 1": None}, f"{launch.poll()} {_log(folder, 0)}"
    site.close()
    assert all(code is not None and code != 0 for code in launch.poll().values()), launch.poll()
    site.close()
    with pytest.raises(LaunchFailed, match="closed"):
        site.start(processes)


def _ports_as_asked(launcher: Launcher, cluster: Cluster) -> None:
    with launcher.open(cluster, 1, num_ports=9) as site:
        assert len(set(site.rendezvous.ports)) == 9
        assert site.rendezvous.address
        assert all(site.rendezvous.address_of(host) for host in {placed.host for placed in place(cluster, 1)})


def _processes(
    cluster: Cluster, folder: Path, rendezvous: Rendezvous, programs: tuple[str, str], port: str
) -> list[Process]:
    return [
        Process(
            name=f"rank {placed.rank}",
            rank=placed.rank,
            host=placed.host,
            argv=(sys.executable, "-S", "-c", program, rendezvous.address, port),
            env={},
            log=folder / f"rank-{placed.rank}.log",
        )
        for placed, program in zip(place(cluster, 2), programs, strict=True)
    ]


def _wait(
    poll: Callable[[], dict[str, int | None]], until: Callable[[dict[str, int | None]], bool]
) -> dict[str, int | None]:
    deadline = time.monotonic() + 60
    while not until(codes := poll()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return codes


def _log(folder: Path, rank: int) -> str:
    path = folder / f"rank-{rank}.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    check_launcher(make_launcher(LaunchTarget(on=sys.argv[1])), cluster_of(sys.argv[2]), Path(sys.argv[3]))

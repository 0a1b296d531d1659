"""Virtual clusters: links are what was asked, two do not collide, and nothing outlives its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.bench.sites.virtual import VirtualLauncher
from paceline.bench.virtual import state, verify
from paceline.bench.virtual.lifecycle import bring_up, check_machine, opened, reshape, take_down
from paceline.bench.virtual.namespaces import on_host
from paceline.bench.virtual.throttle import group_for, join_group, remove_groups
from paceline.bench.virtual.verify import measure_streams, measure_trip
from paceline.errors import InputError, LaunchFailed, Unsupported
from tests.integration.cluster.conftest import RATE, equal_hosts
from tests.integration.cluster.services import on, wait_until

PAIR = ("a", "b")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state directory of its own, and no namespace left behind."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for home in state.listing():
        take_down(home)
    wait_until(lambda: not holders(tmp_path), "the end of all namespaces", 20)


def holders(root: Path) -> list[int]:
    """Processes that hold or play hosts of clusters whose state is below a directory; namespaces go with them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "paceline.bench.virtual.holder" in words and any(word.startswith(str(root)) for word in words):
            found.append(process.pid)
    return found


def test_links_are_what_was_asked() -> None:
    up = bring_up(equal_hosts(PAIR, bandwidth=1.25e7, latency=1e-3), owner=os.getpid())
    assert {check.kind for check in up.checks} == {"bandwidth", "round_trip"}
    assert all(abs(check.error) <= 0.05 for check in up.checks)
    (rate,) = measure_streams(up.layout, up.processes.hosts, [PAIR], seconds=1.0)
    assert rate == pytest.approx(1.25e7, rel=0.05)
    assert measure_trip(up.layout, up.processes.hosts, *PAIR) == pytest.approx(2e-3, rel=0.15)


def test_a_borrowed_cluster_is_given_back_with_its_own_dilation() -> None:
    cluster = equal_hosts(PAIR)
    bring_up(cluster, name="mine", dilation=2.0)
    with VirtualLauncher(dilation=1.0) as launcher:
        with launcher.open(cluster, 2) as site:
            assert site.rendezvous.facts["virtual_cluster"] == "mine"
        assert opened("mine").layout.dilation == 1.0
    up = opened("mine")
    assert up.layout.dilation == 2.0
    (rate,) = measure_streams(up.layout, up.processes.hosts, [PAIR], seconds=1.0)
    assert rate == pytest.approx(RATE / 2, rel=0.1)


def test_a_cluster_that_its_user_stops_meanwhile_is_not_given_back() -> None:
    cluster = equal_hosts(PAIR)
    up = bring_up(cluster, name="mine", dilation=2.0)
    with VirtualLauncher(dilation=1.0) as launcher, launcher.open(cluster, 2):
        take_down(up.home)
    assert not up.home.exists()


def test_a_busy_moment_is_not_the_fault_of_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, rounds = verify._streams, []

    def busy(*args: Any, **options: Any) -> list[float]:
        rounds.append(measured(*args, **options))
        return [rate / 2 for rate in rounds[-1]] if len(rounds) <= 3 else rounds[-1]

    monkeypatch.setattr(verify, "_streams", busy)
    up = bring_up(equal_hosts(PAIR), owner=os.getpid())
    assert all(abs(check.error) <= 0.05 for check in up.checks)
    assert len(rounds) > 4, "each way was off at first, and one of them twice"


def test_hosts_have_names_processes_and_networks_of_their_own() -> None:
    up = bring_up(equal_hosts(PAIR), owner=os.getpid())
    assert on(up, "a", ["hostname"]).stdout == "a\n"
    assert "10." in on(up, "a", ["getent", "hosts", "b"]).stdout
    names = on(up, "a", ["sh", "-c", "ls /sys/class/net; ls /proc | grep -c '^[0-9]'"]).stdout.split()
    assert names[:2] == ["eth0", "lo"]
    assert int(names[2]) < 10


def test_a_link_that_cannot_be_played_is_refused_and_leaves_nothing() -> None:
    with pytest.raises(LaunchFailed, match="deviate from the request"):
        bring_up(equal_hosts(PAIR, bandwidth=1e12), owner=os.getpid())
    assert state.listing() == []
    assert list(state.state_directory().iterdir()) == []


def test_unequal_links_and_reshaping() -> None:
    cluster = equal_hosts(("a", "b", "c"), bandwidth=2.5e7)
    slow = cluster.hosts[2].model_copy(update={"link": cluster.hosts[2].link.model_copy(update={"bandwidth": 5e6})})
    up = bring_up(cluster.model_copy(update={"hosts": (*cluster.hosts[:2], slow)}), owner=os.getpid())
    found = {(check.source, check.target): check.measured for check in up.checks}
    assert found["a", "c"] == pytest.approx(5e6, rel=0.05)
    assert found["a", "b"] == pytest.approx(2.5e7, rel=0.05)
    slower = reshape(up, dilation=5.0)
    (rate,) = measure_streams(slower.layout, slower.processes.hosts, [PAIR], seconds=1.0)
    assert rate == pytest.approx(5e6, rel=0.05)


def test_loss_and_jitter() -> None:
    up = bring_up(equal_hosts(PAIR, latency=2e-3, jitter=5e-4, loss=0.04), owner=os.getpid())
    target = up.layout.seat("b").address
    ping = ["ping", "-U", "-q", "-c", "200", "-i", "0.01", "-W", "1", target]
    done = subprocess.run(on_host(up.pid_of("a"), ping), capture_output=True, text=True, timeout=60, check=False)
    lost = float(done.stdout.split("% packet loss")[0].split()[-1])
    assert 2 < lost < 14  # 4 % each way, 200 pings: 8 % expected, three standard deviations
    spread = float(done.stdout.rsplit("/", 1)[1].split()[0])
    assert 0.3 < spread < 3


def test_two_clusters_at_once() -> None:
    first = bring_up(equal_hosts(PAIR, name="one"))
    second = bring_up(equal_hosts(PAIR, name="two"))
    assert first.layout.seats[0].address != second.layout.seats[0].address
    with pytest.raises(InputError, match="already up"):
        bring_up(equal_hosts(PAIR, name="one"))
    take_down(first.home)
    assert [home.name for home in state.listing()] == ["two"]
    assert on(opened("two"), "a", ["hostname"]).stdout == "a\n"


@pytest.mark.parametrize("victim", ["holder", "keeper", "a"])
def test_killing_any_process_of_a_cluster_ends_what_depends_on_it(victim: str) -> None:
    up = bring_up(equal_hosts(PAIR, name="doomed"))
    sleeper = subprocess.Popen(on_host(up.pid_of("a"), ["sleep", "1000"]))
    wait_until(lambda: len(psutil.Process(sleeper.pid).children()) == 1, "the sleeper")
    processes = {"holder": up.processes.holder, "keeper": up.processes.keeper, **up.processes.hosts}
    os.kill(processes[victim], signal.SIGKILL)
    assert sleeper.wait(timeout=10) != 0
    if victim != "a":
        wait_until(lambda: not up.is_up, "the end of the cluster")
    done = subprocess.run([sys.executable, "-m", "paceline", "cluster", "down", "doomed"], check=False, timeout=60)
    assert done.returncode == (2 if victim == "keeper" else 0)  # the holder has cleaned up after its keeper already
    assert state.listing() == []


def test_a_cluster_goes_with_its_owner_even_half_made() -> None:
    code = (
        "import os, time\nfrom tests.integration.cluster.conftest import equal_hosts\n"
        "from paceline.bench.virtual.lifecycle import bring_up\n"
        "bring_up(equal_hosts(('a', 'b')), owner=os.getpid())\nprint('up', flush=True)\ntime.sleep(1000)\n"
    )
    for delay in (0.2, 0.4, 0.8, 1.5, None):
        owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        assert owner.stdout is not None
        if delay is None:
            assert owner.stdout.readline() == "up\n"
        else:
            time.sleep(delay)
        owner.kill()
        owner.communicate()
        wait_until(lambda: not [path for path in _homes() if state.is_alive(path)], "the end of the cluster", 20)
    state.sweep(older_than_s=0.0)
    assert _homes() == []


def _homes() -> list[Path]:
    root = state.state_directory()
    return list(root.iterdir()) if root.is_dir() else []


def test_without_root_it_says_so() -> None:
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            check_machine()
        except Unsupported as error:
            os._exit(0 if "root" in str(error) and "--on local" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_virtual_clusters_do_not_nest() -> None:
    up = bring_up(equal_hosts(PAIR, name="outer"), owner=os.getpid())
    path = Path(__file__).parents[3] / "examples" / "clusters" / "four-1gbe.toml"
    for words in (["cluster", "up", str(path)], ["bench-collectives", "--on", "virtual", "--cluster", str(path)]):
        inside = on_host(up.pid_of("a"), [sys.executable, "-m", "paceline", *words])
        done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert f"host of the virtual cluster '{up.name}'" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_quota_holds_real_compute() -> None:
    code = "import time\nb=time.perf_counter()\nwhile time.perf_counter()-b<1: pass\nprint(time.process_time())"
    group = group_for(f"test-{os.getpid()}", "half", share=0.25)
    assert group is not None
    try:
        done = subprocess.run(
            join_group(group, [sys.executable, "-c", code]), capture_output=True, text=True, check=True
        )
    finally:
        remove_groups(f"test-{os.getpid()}")
    assert float(done.stdout) < 0.4
    assert not group.exists()


def test_duty_cycle_where_there_are_no_groups() -> None:
    code = "import time\nb=time.perf_counter()\nwhile time.perf_counter()-b<1: pass\nprint(time.process_time())"
    module = "paceline.bench.virtual.throttle"
    command = [sys.executable, "-m", module, "0.25", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 0.5


def test_verbs(paceline: object, tmp_path: Path) -> None:
    """up, list, inspect, down, as a user types them."""
    command = [sys.executable, "-m", "paceline", "cluster"]
    example = Path(__file__).parents[3] / "examples" / "clusters" / "unequal-cpus.toml"
    path = tmp_path / example.name
    path.write_text(example.read_text().replace("1 Gb/s", "200 Mb/s"))
    env = {**os.environ, "COLUMNS": "140"}

    def run(*words: str) -> str:
        done = subprocess.run([*command, *words], capture_output=True, text=True, env=env, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "full" in run("up", str(path))
    assert json.loads(run("list", "--json"))["clusters"][0]["name"] == "unequal-cpus"
    found = tmp_path / "found.toml"
    run("inspect", "--on", "virtual", "--out", str(found))
    from paceline.catalog import cluster

    hosts = cluster(str(found)).hosts
    assert [host.name for host in hosts] == ["full", "quarter"]
    assert all(host.link.bandwidth == pytest.approx(RATE, rel=0.1) for host in hosts)
    assert "down: unequal-cpus" in run("down", "unequal-cpus")

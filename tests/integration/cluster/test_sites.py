"""Every site passes the same tests: ranks run where they should, fail in the open, and end when they must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.bench.virtual.namespaces import on_host
from paceline.catalog import cluster, network
from paceline.measurements.store import Store
from paceline.measurements.tables import pass_times
from tests.integration.cluster.conftest import RATE, Grounds, workers
from tests.integration.cluster.services import on, wait_until

CLUSTER = """
name = "two"
[[host]]
name = "n1"
devices = [{ name = "plain", kind = "cpu" }]
inside = "loopback"
link = { name = "way", bandwidth = "200 Mb/s" }
[[host]]
name = "n2"
devices = [{ name = "plain", kind = "cpu" }]
inside = "loopback"
link = { name = "way", bandwidth = "200 Mb/s" }
"""
STUDY = """
name = "conform"
networks = ["lenet"]
frameworks = ["pytorch"]
clusters = ["{cluster}"]
devices = [2]
batch = {batch}
[protocol]
launches = 1
max_launches = 1
warmup = 1
steps = 5
phase_steps = 1
timeout = "{timeout}"
"""
HANG, CRASH = 1001, 1002
ROOT = Path(__file__).parents[3]
ENGINES = ("local", "virtual", "ssh", "mpi", "mpich", "slurm", "slurm-batch", "slurm-array", "slurm-het", "ray")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, engine: str) -> Grounds:
    """Where the engine runs."""
    found: Grounds = request.getfixturevalue("ray_grounds" if engine == "ray" else "grounds")
    return found


@pytest.fixture
def study(tmp_path: Path, engine: str) -> Callable[..., list[str]]:
    """Writes a study and says how to run it."""

    def write(*batch: int, timeout: str = "1 min") -> list[str]:
        cluster = tmp_path / "two.toml"
        cluster.write_text(CLUSTER)
        # An array job lands where Slurm likes; the cluster then names no hosts.
        name = "local" if engine == "slurm-array" else str(cluster)
        path = tmp_path / "study.toml"
        path.write_text(STUDY.format(cluster=name, batch=list(batch), timeout=timeout))
        return ["run", str(path), "--on", engine]

    return write


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test no rank and no agent runs."""
    yield
    wait_until(lambda: not workers(), "the end of all ranks", 30)


def test_sites_do_what_every_site_must(place: Grounds, tmp_path: Path, engine: str) -> None:
    """The same checks that the sites of this machine pass in the unit tests, by a process on the first host."""
    (tmp_path / "two.toml").write_text(CLUSTER)
    name = str(tmp_path / "two.toml") if engine != "slurm-array" else "local"
    argv = [sys.executable, "-m", "tests.integration.site_conformance", engine, name, str(tmp_path)]
    if engine not in ("local", "virtual"):
        argv = on_host(place.up.pid_of("n0"), argv, directory=ROOT)
    done = subprocess.run(argv, cwd=ROOT, env=place.env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_come_back_and_failures_are_stored(
    place: Grounds, study: Callable[..., list[str]], tmp_path: Path, engine: str
) -> None:
    """One study with a case that works, one whose rank crashes and one that hangs: it goes on after each."""
    place.run(tmp_path / "results", *study(8, CRASH, HANG, timeout="7 s"))
    runs = {run.batch: run for run in Store(tmp_path / "results").read_all()}
    good, crashed, hung = (runs[batch] for batch in (8, CRASH, HANG))
    assert good.outcome == "ok", good.failure
    assert good.launcher.startswith(engine.split("-")[0].replace("mpich", "mpi"))
    assert len(good.facts["clock_offsets_s"]) == 2
    assert crashed.failure is not None
    assert crashed.failure.reason == "crash"
    assert "the planted crash" in crashed.failure.log_tail
    assert hung.failure is not None
    assert hung.failure.reason == "timeout"


@pytest.mark.parametrize("engine", ["ssh", "mpi", "mpich", "slurm", "ray"], indirect=True)
def test_real_pytorch_exchanges_gradients_between_hosts(
    place: Grounds, study: Callable[..., list[str]], tmp_path: Path, pytorch: Path
) -> None:
    command = Path(sys.executable).with_name("paceline")
    process = place.start(tmp_path / "results", *study(8), command=command)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    store = Store(tmp_path / "results")
    *_, run = store.read_all()  # phases that do not close are measured again, as another launch
    assert run.outcome == "ok", run.failure
    assert run.machine.versions["torch"].startswith("2.")
    passes = {item.pass_name: item for item in pass_times(store, [run.id])}
    assert passes["clean"].num_steps == 5
    gradients = 4 * network("lenet").parameters
    assert passes["clean"].median_s > 0.8 * gradients / RATE, (
        "in a ring of two every rank sends all bytes over its link"
    )


def test_a_lost_rank_is_a_stored_failure(place: Grounds, study: Callable[..., list[str]], tmp_path: Path) -> None:
    process = place.start(tmp_path / "results", *study(HANG))
    _await_ranks(2)
    time.sleep(0.5)
    ranks = [p for p in workers() if any("quick_worker" in word for word in p.cmdline())]
    last = next(p for p in ranks if p.environ().get("PACELINE_RANK") == "1")
    os.kill(last.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    (run,) = Store(tmp_path / "results").read_all()
    assert run.failure is not None, out + err
    assert run.failure.reason == "killed"


def test_the_end_of_the_command_ends_the_ranks(place: Grounds, study: Callable[..., list[str]], tmp_path: Path) -> None:
    process = place.start(tmp_path / "results", *study(HANG))
    _await_ranks(2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not workers(), "the end of all ranks", 30)
    assert Store(tmp_path / "results").read_all() == []


def _await_ranks(count: int) -> None:
    def there() -> bool:
        return sum(any("quick_worker" in word for word in p.info["cmdline"] or ()) for p in workers()) >= count

    wait_until(there, f"{count} ranks", 60)


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., list[str]]:
    """A study on the two named hosts, for tests of one engine."""

    def write(on: str, batch: int = 8, timeout: str = "1 min") -> list[str]:
        (tmp_path / "two.toml").write_text(CLUSTER)
        path = tmp_path / "study.toml"
        path.write_text(STUDY.format(cluster=tmp_path / "two.toml", batch=[batch], timeout=timeout))
        return ["run", str(path), "--on", on]

    return write


def test_hosts_without_a_shared_file_system(grounds: Grounds, pair: Callable[..., list[str]], tmp_path: Path) -> None:
    """The launch's folder exists on the first host alone; its files travel, and log and events come back."""
    private = Path(tempfile.mkdtemp(dir=grounds.folder))
    for host in ("n1", "n2"):
        on(grounds.up, host, ["mount", "-t", "tmpfs", "none", str(private)])
    there = replace(grounds, env={**grounds.env, "TMPDIR": str(private)})
    there.run(tmp_path / "results", *pair("ssh"))
    there.run(tmp_path / "crash", *pair("ssh", CRASH))
    runs = list(Store(tmp_path / "results").read_all())  # a disturbed launch is measured again
    assert runs
    assert {run.outcome for run in runs} == {"ok"}, [run.failure for run in runs]
    (run,) = Store(tmp_path / "crash").read_all()
    assert run.failure is not None
    assert "the planted crash" in run.failure.log_tail


def test_a_cancelled_job_is_a_stored_failure(grounds: Grounds, pair: Callable[..., list[str]], tmp_path: Path) -> None:
    """What a preempted job looks like."""
    process = grounds.start(tmp_path / "results", *pair("slurm-batch", HANG))
    _await_ranks(2)
    on(grounds.up, "n0", ["scancel", "--full", "--name=paceline"], env=grounds.env)
    out, err = process.communicate(timeout=120)
    (run,) = Store(tmp_path / "results").read_all()
    assert run.failure is not None, out + err
    assert run.failure.reason == "killed"


def test_a_host_that_does_not_answer_is_a_stored_failure(
    grounds: Grounds, pair: Callable[..., list[str]], tmp_path: Path
) -> None:
    grounds.run(tmp_path / "results", *pair("ssh"), "--hosts", "n1,nowhere")
    (run,) = Store(tmp_path / "results").read_all()
    assert run.failure is not None
    assert run.failure.phase == "launch"
    assert "nowhere" in run.failure.message


def test_inspect_and_collectives_over_slurm(grounds: Grounds, tmp_path: Path) -> None:
    """The links of the grounds are found as they were made."""
    found = tmp_path / "found.toml"
    argv = [sys.executable, "-m", "paceline", "cluster", "inspect", "--on", "slurm", "--out", str(found)]
    inside = on_host(grounds.up.pid_of("n0"), argv, directory=tmp_path)
    done = subprocess.run(inside, env=grounds.env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    hosts = cluster(str(found)).hosts
    assert [host.name for host in hosts] == ["n0", "n1", "n2"]
    assert all(host.link.bandwidth == pytest.approx(RATE, rel=0.15) for host in hosts), found.read_text()
    assert found.read_text().count("# clock:") == 3


def test_collectives_through_mpi(grounds: Grounds, tmp_path: Path, pytorch: Path) -> None:
    (tmp_path / "two.toml").write_text(CLUSTER)
    words = ["bench-collectives", "--on", "mpi", "--transport", "mpi", "--cluster", str(tmp_path / "two.toml")]
    argv = [sys.executable, "-m", "paceline", *words, "--sizes", "1 KiB,1 MiB", "--seconds", "0.1"]
    inside = on_host(grounds.up.pid_of("n0"), [*argv, "--store", str(tmp_path / "results")], directory=tmp_path)
    done = subprocess.run(inside, env=grounds.env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = Store(tmp_path / "results").read_all()
    assert run.outcome == "ok", run.failure
    times = {(item["collective"], item["size_bytes"]): item["seconds"] for item in run.facts["collectives"]}
    assert len(times) == 10
    assert times["all_reduce", 2**20] > 2**20 / RATE * 0.8  # the whole buffer crosses a link


def start_pods(grounds: Grounds, manifest: str) -> list[subprocess.Popen[bytes]]:
    """What Kubernetes does with a manifest: the container's command, once on each host, with the secret it names."""
    secret, jobset = json.loads(manifest)["items"]
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert job["completions"] == 2
    given = {item["name"]: secret["stringData"][item["valueFrom"]["secretKeyRef"]["key"]] for item in container["env"]}
    hosts = [on_host(grounds.up.pid_of(host), container["command"]) for host in ("n1", "n2")]
    return [subprocess.Popen(argv, env={**grounds.env, **given}) for argv in hosts]


def test_pods_of_a_written_manifest(grounds: Grounds, pair: Callable[..., list[str]], tmp_path: Path) -> None:
    """No Kubernetes runs here: its part is done by hand for each manifest; a disturbed launch is repeated."""
    manifest = tmp_path / "manifest.json"
    process = grounds.start(tmp_path / "results", *pair("kubernetes"), "--engine", f"manifest={manifest}")
    seen, pods = "", []
    while process.poll() is None:
        text = manifest.read_text() if manifest.exists() else ""
        if text != seen and text.endswith("}"):
            seen, pods = text, pods + start_pods(grounds, text)
        time.sleep(0.05)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert [pod.wait(timeout=20) for pod in pods] == [0] * len(pods)
    runs = list(Store(tmp_path / "results").read_all())
    assert runs
    assert len(pods) == 2 * len(runs)
    assert {run.outcome for run in runs} == {"ok"}, [run.failure for run in runs]
    assert {run.launcher for run in runs} == {"kubernetes"}

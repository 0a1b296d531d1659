"""What the ranks and shards of a training job are told, for one machine and for many hosts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.bench.sites.engines import SshEngine
from paceline.bench.sites.local import LocalLauncher
from paceline.bench.sites.remote import RemoteLauncher
from paceline.bench.sites.site import Process, Rendezvous
from paceline.bench.sites.target import LaunchTarget
from paceline.errors import InputError
from paceline.model.plan.file import PlanFile, PlanGroup, PlanMember
from paceline.runtime.job.following import JobResult, follow_ranks
from paceline.runtime.launch import (
    Grouping,
    TrainingJob,
    TrainingRequest,
    fair_share,
    num_ports,
    processes_of,
    reduced,
    run_training,
)
from paceline.runtime.samples import REACHED
from paceline.runtime.syncer.journal import DAMAGED
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link, place


def cluster(*counts: int) -> Cluster:
    way, inside = Link(name="way", bandwidth=1e9), Link(name="bus", bandwidth=1e11)
    device = Device(name="plain", emulation=Emulation(forward=0.1, speed=2.0))
    hosts = [Host(name=f"h{n}", devices=(device,) * count, inside=inside, link=way) for n, count in enumerate(counts)]
    return Cluster(name="some", hosts=tuple(hosts))


def job_on(some: Cluster, rendezvous: Rendezvous, folder: Path, grouping: Grouping | None = None) -> TrainingJob:
    script = folder / "train.py"
    script.touch()
    python = Path("/usr/bin/python3")
    placement = place(some, some.num_devices)
    return TrainingJob(
        script=script,
        arguments=(),
        python=python,
        folder=folder,
        placement=placement,
        rendezvous=rendezvous,
        grouping=grouping,
    )


def test_only_devices_that_take_part_are_left_and_hosts_keep_their_numbers() -> None:
    used = reduced(cluster(2, 1, 2), (1, 3))
    assert [len(host.devices) for host in used.hosts] == [1, 0, 1]
    assert [placed.host for placed in place(used, 2)] == [0, 2]


def test_one_machine_offers_as_many_free_ports_as_groups_need() -> None:
    grouping = Grouping(groups=((0,), (1,), (2,)), samples=(1, 1, 1), local_steps=1, quorum=1)
    with LocalLauncher().open(cluster(3), 3, num_ports=num_ports(grouping)) as site:
        assert len(set(site.rendezvous.ports)) == 7
        assert site.rendezvous.address_of(0) == "127.0.0.1"
    assert num_ports(None) == 1


def test_groups_meet_and_shards_serve_on_the_hosts_where_they_are(tmp_path: Path) -> None:
    some = cluster(2, 2)
    grouping = Grouping(groups=((0, 1), (2, 3)), samples=(10, 30), local_steps=4, quorum=2)
    rendezvous = Rendezvous("10.0.0.1", tuple(range(100, 105)), dilation=4.0, hosts=("10.0.0.1", "10.0.0.2"))
    processes = {process.name: process for process in processes_of(job_on(some, rendezvous, tmp_path, grouping))}
    assert processes["shard 0"].argv[-1] == "10.0.0.1"
    assert (processes["shard 1"].argv[-1], processes["shard 1"].host) == ("10.0.0.2", 1)
    told = processes["rank 3"].env
    assert told["PACELINE_JOIN"] == "10.0.0.2:102"
    assert told["PACELINE_SYNCER"] == "10.0.0.1:103,10.0.0.2:104"
    assert (told["PACELINE_RANK"], told["PACELINE_SIZE"], told["PACELINE_GROUP_SHARE"]) == ("1", "2", "0.75")
    assert '"speed": 0.5' in told["PACELINE_EMULATION"], "a dilated cluster slows its devices like its links"


def test_ranks_with_more_threads_than_cores_wait_without_spinning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    job = replace(job_on(cluster(2, 3), Rendezvous("10.0.0.1", (100,)), tmp_path), threads=2)
    policies = [process.env.get("OMP_WAIT_POLICY") for process in processes_of(job)]
    assert policies == [None] * 2 + ["passive"] * 3, "four threads on four cores, six on four"
    policies = [process.env.get("OMP_WAIT_POLICY") for process in processes_of(replace(job, one_machine=True))]
    assert policies == ["passive"] * 5, "hosts of a virtual cluster share the cores of this machine"


def test_on_other_hosts_addresses_are_filled_in_when_they_are_known() -> None:
    rendezvous = RemoteLauncher(SshEngine()).open(cluster(1, 1), 2, num_ports=5).rendezvous
    assert len(rendezvous.ports) == 5
    assert rendezvous.address_of(1) not in ("", rendezvous.address_of(0), rendezvous.address)


def test_a_script_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    job = job_on(cluster(1), Rendezvous("127.0.0.1", (1,)), tmp_path)
    job.script.unlink()
    with pytest.raises(InputError, match="is not a file"):
        processes_of(job)


def plan(*groups: tuple[int, ...]) -> PlanFile:
    members = [tuple(PlanMember(rank=rank, device="plain", samples=10 + rank) for rank in ranks) for ranks in groups]
    batch = sum(member.samples for each in members for member in each)
    return PlanFile(
        network="some", cluster="some", global_batch=batch, kind="groups", local_steps=4, quorum=2,
        predicted_step_s=1.0, predicted_throughput=1.0, predicted_utilisation=1.0, staleness=0.0, efficiency=1.0,
        reason="a test", group=tuple(PlanGroup(members=each) for each in members),
    )  # fmt: skip


def test_groups_of_a_plan_are_numbered_among_the_devices_that_take_part() -> None:
    request = TrainingRequest(Path("train.py"), (), cluster(3, 3), ranks=6, plan=plan((1, 2), (4,)))
    assert request.chosen == (1, 2, 4)
    assert request.grouping == Grouping(groups=((0, 1), (2,)), samples=(23, 14), local_steps=4, quorum=2)
    one = TrainingRequest(Path("train.py"), (), cluster(3, 3), ranks=6, plan=plan((0, 1, 2)))
    assert one.grouping is None
    assert TrainingRequest(Path("train.py"), (), cluster(3), ranks=2).chosen == (0, 1)


def test_more_ranks_than_devices_are_an_error() -> None:
    request = TrainingRequest(Path("train.py"), (), cluster(2), ranks=3)
    with pytest.raises(InputError, match="rank 2 is asked for, cluster 'some' has 2 devices"):
        run_training(request, LaunchTarget(), lambda line: None)


def test_ranks_are_told_the_global_batch_and_the_split_of_their_group(tmp_path: Path) -> None:
    request = TrainingRequest(Path("train.py"), (), cluster(3, 3), ranks=6, plan=plan((1, 2), (4,)))
    assert request.split == (11, 12, 14)
    rendezvous = Rendezvous("127.0.0.1", tuple(range(100, 105)))
    job = replace(
        job_on(reduced(cluster(3, 3), request.chosen), rendezvous, tmp_path, request.grouping), split=request.split
    )
    told = [process.env for process in processes_of(job) if process.rank is not None]
    assert [env["PACELINE_GLOBAL_BATCH"] for env in told] == ["37"] * 3
    assert [env["PACELINE_SPLIT"] for env in told] == ["11,12", "11,12", "14"]
    batches = [round(37 * float(env["PACELINE_GROUP_SHARE"])) for env in told]
    assert batches == [23, 23, 14], "groups take exactly the samples of their members"
    assert "PACELINE_SPLIT" not in processes_of(job_on(cluster(1), rendezvous, tmp_path))[0].env


def test_a_plan_for_another_cluster_is_refused() -> None:
    def run(some: Cluster) -> None:
        request = TrainingRequest(Path("train.py"), (), some, ranks=2, plan=plan((0, 1)))
        run_training(request, LaunchTarget(), lambda line: None)

    with pytest.raises(InputError, match="the plan is for cluster 'some', asked is 'other'"):
        run(cluster(2).model_copy(update={"name": "other"}))
    with pytest.raises(InputError, match="rank 1 of the plan is 'plain', in cluster 'some' it is 'no device'"):
        run(cluster(1))
    other = tuple(host.model_copy(update={"devices": (Device(name="plai"),) * 2}) for host in cluster(2).hosts)
    with pytest.raises(InputError, match="rank 0 of the plan is 'plain', in cluster 'some' it is 'plai'"):
        run(cluster(2).model_copy(update={"hosts": other}))


def test_a_plan_has_every_sample_of_its_batch() -> None:
    with pytest.raises(ValueError, match="samples of all members sum to 21, global_batch is 22"):
        PlanFile(**{**plan((0, 1)).model_dump(), "global_batch": 22})


def test_the_death_of_a_rank_is_reported_and_rates_of_groups_add_up(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    wait = f"import os, time\nwhile not os.path.exists({str(ended)!r}): time.sleep(0.01)\n"
    said = REACHED.format(rate=12.5, low=12.0, high=13.0, steps=4)
    scripts = [
        f"{wait}print({said!r})",
        f"print({said!r})",
        "import os; os.kill(os.getpid(), 9)",
        "raise SystemExit(3)",
    ]
    processes = [
        Process(f"rank {rank}", 0, (sys.executable, "-c", text), {}, tmp_path / f"{rank}.log", rank=rank)
        for rank, text in enumerate(scripts)
    ]
    lines = []
    with LocalLauncher().open(cluster(4), 4, num_ports=1) as site:
        for line in follow_ranks(site, processes):
            lines.append(line)
            if any(
                "rank 2] was killed by SIGKILL; training continues without it" in str(line) for line in lines
            ) and any("rank 3] failed with exit code 3; training continues without it" in str(line) for line in lines):
                ended.touch()
    result = lines[-1]
    assert isinstance(result, JobResult)
    assert result.codes == {"rank 0": 0, "rank 1": 0, "rank 2": -9, "rank 3": 3}
    assert result.reached == 25.0
    assert not result.ok


@pytest.mark.parametrize(("code", "starts"), [(1, 4), (-9, 4), (DAMAGED, 1)])
def test_a_shard_that_ends_again_and_again_is_started_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, starts: int
) -> None:
    monkeypatch.setattr("paceline.runtime.job.following.SHARD_RESTARTS", 3)
    monkeypatch.setattr("paceline.runtime.job.following.POLL_S", 0.02)
    count = tmp_path / "count"
    end = "kill -9 $$" if code < 0 else f"exit {code}"
    # The rank trains on for a while after the last start that is due: one more would be seen.
    until = f"until [ $(wc -l < {count} || echo 0) -ge {starts} ]; do sleep 0.02; done; sleep 0.5"
    processes = [
        Process("shard 0", 0, ("sh", "-c", f"echo start >> {count}; {end}"), {}, tmp_path / "shard.log"),
        Process("rank 0", 0, ("sh", "-c", until), {}, tmp_path / "rank.log", rank=0),
    ]
    with LocalLauncher().open(cluster(1), 1) as site:
        *said, result = follow_ranks(site, processes)
    assert count.read_text().splitlines() == ["start"] * starts
    assert sum("started again" in str(line) for line in said) == starts - 1
    assert result == JobResult({"rank 0": 0}, 0)


@pytest.mark.parametrize(("counts", "one_machine", "threads"), [
    ((1,), True, 8), ((2, 2), True, 2), ((2, 2), False, 4), ((2, 4), False, 2), ((0, 1), False, 8), ((16,), True, 1),
])  # fmt: skip
def test_ranks_have_an_even_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], one_machine: bool, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    some = cluster(*(max(1, count) for count in counts))
    chosen = [rank for rank, placed in enumerate(place(some, some.num_devices)) if counts[placed.host]]
    assert fair_share(reduced(some, tuple(chosen)), one_machine=one_machine) == threads
    stated = some.with_cores(1)
    assert one_machine or fair_share(stated, one_machine=False) == 1

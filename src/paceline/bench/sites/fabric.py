"""One collective over all hosts, then messages between pairs of hosts: by our own worker, or by nccl-tests."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from paceline.bench.collectives import PAIR, Sweep, collective_times, run_sweep
from paceline.bench.machine import describe_machine
from paceline.bench.sites.site import Launcher
from paceline.bench.sites.survey import UNKNOWN_LINK, hosts_of
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.catalog import cluster
from paceline.catalog.links import link as catalog_link
from paceline.errors import InputError, LaunchFailed, Unsupported
from paceline.measurements.foreign.nccl_tests import CollectiveTest, TestedSize, read_nccl_tests
from paceline.measurements.run import Span
from paceline.spec.cluster import Cluster, place

__all__ = ["PairRates", "ProbedHosts", "probe_target", "rounds_of"]

PairRates = dict[tuple[str, str], float]
"""Bytes per second between two hosts in the slower direction, all their ranks together."""
NCCL_PROGRAM = "all_reduce_perf"
MOST_ROUNDS = 8
LINK_S, LEAST_BYTES, USUAL_BYTES, MOST_BYTES = 0.1, 1 << 20, 64 << 20, 256 << 20
"""A message takes a tenth of a second on the slowest link, within bounds; the default size if the link is unknown."""
TIMEOUT_S = 600.0


def rounds_of(count: int, most: int = MOST_ROUNDS) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs, as in a round-robin tournament; all pairs, or at most the given number of rounds."""
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds[:most]


def _message_bytes(hosts: Cluster) -> int:
    """Bytes of the test's message."""
    if not _known(hosts):
        return USUAL_BYTES
    slowest = min(host.link.bandwidth * host.nics for host in hosts.hosts)
    return int(min(MOST_BYTES, max(LEAST_BYTES, slowest * LINK_S))) // 4096 * 4096


def _known(hosts: Cluster) -> bool:
    return all(host.link.name != UNKNOWN_LINK for host in hosts.hosts)


@dataclass(frozen=True)
class ProbedHosts:
    """A collective over all hosts, the rates of pairs, and the hosts with their links, if those are known."""

    test: CollectiveTest
    rates: PairRates
    cluster: Cluster
    known: bool


def probe_target(
    target: LaunchTarget, where: str | None = None, link: str | None = None, program: str | None = None
) -> ProbedHosts:
    """Test the hosts of a target, or of a cluster, by this program of nccl-tests; by default the one found on GPUs."""
    hosts = cluster(where) if where else hosts_of(target)
    if link is not None:
        named = catalog_link(link)
        hosts = hosts.model_copy(update={"hosts": tuple(h.model_copy(update={"link": named}) for h in hosts.hosts)})
    if len(hosts.hosts) < 2:
        raise InputError("one host has no link to another", hint="--hosts a,b,c, or --cluster with several hosts")
    devices = [device for host in hosts.hosts for device in host.devices]
    on_gpus = target.on != "virtual" and all(device.kind == "gpu" and not device.emulation for device in devices)
    program = program or (shutil.which(NCCL_PROGRAM) if on_gpus else None)
    if program is not None:
        test, rates = _probe_with_nccl_tests(hosts, target, program)
    else:
        with make_launcher(target) as launcher:
            test, rates = _probe(hosts, launcher, "nccl" if on_gpus else "gloo")
    return ProbedHosts(test, rates, hosts, _known(hosts))


def _probe(hosts: Cluster, launcher: Launcher, transport: str) -> tuple[CollectiveTest, PairRates]:
    """One launch on all devices of all hosts: an all-reduce, then every round of pairs at once."""
    placed = place(hosts, hosts.num_devices)
    on_host: dict[int, list[int]] = defaultdict(list)
    for one in placed:
        on_host[one.host].append(one.rank)
    pairs = tuple(
        tuple(both for a, b in met for both in zip(on_host[a], on_host[b], strict=False))
        for met in rounds_of(len(hosts.hosts))
    )
    sweep = Sweep(hosts, len(placed), (_message_bytes(hosts),), ("all_reduce",), transport, 0.5, pairs)
    data = run_sweep(sweep, launcher, describe_machine(()))
    if data.run.failure is not None:
        tail = data.run.failure.log_tail.strip().splitlines()[-1:]
        raise LaunchFailed(" ".join([f"the test of the hosts failed: {data.run.failure.message}", *tail]))
    sizes = [TestedSize(t.size_bytes, t.seconds, t.bus_bandwidth, 0) for t in collective_times(data.spans, len(placed))]
    names = [hosts.hosts[one.host].name for one in placed]
    test = CollectiveTest(transport, "all_reduce", len(placed), tuple(dict.fromkeys(names)), "", tuple(sizes))
    return test, _pair_rates(data.spans, names)


def _pair_rates(spans: Sequence[Span], names: Sequence[str]) -> PairRates:
    """The rate of each pair in its slower direction, summed over its ranks; even repetitions go one way, odd ones back.

    A repetition is as long as its slower end, and of each direction the median counts.
    """
    slower: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    sizes = {}
    for span in spans:
        if span.name.startswith(PAIR):
            a, b = (int(word) for word in span.name.removeprefix(PAIR).split("-"))
            slower[a, b][span.step] = max(slower[a, b][span.step], span.seconds)
            sizes[a, b] = span.size_bytes or 0
    rates: PairRates = defaultdict(float)
    for (a, b), steps in slower.items():
        ways = [median(seconds for step, seconds in steps.items() if step % 2 == way) for way in (0, 1)]
        rates[names[a], names[b]] += sizes[a, b] / max(ways)
    return dict(rates)


def _probe_with_nccl_tests(hosts: Cluster, target: LaunchTarget, program: str) -> tuple[CollectiveTest, PairRates]:
    """The same probe by a program of nccl-tests that was built with MPI: a run for all hosts, and one per pair."""
    names = [host.name for host in hosts.hosts]
    addresses = dict(zip(names, target.hosts or (host.address or host.name for host in hosts.hosts), strict=False))
    devices = min(len(host.devices) for host in hosts.hosts)
    with TemporaryDirectory(prefix="paceline-nccl-tests-") as folder:
        out = Path(folder) / "all_reduce_perf.txt"

        def run(some: Sequence[str]) -> CollectiveTest:
            words = [program, "-b", "64M", "-e", "1G", "-f", "4", "-g", "1"]
            with out.open("w") as file:
                argv = [*_starter(target, [addresses[name] for name in some], devices), *words]
                done = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
            if done.returncode != 0:
                last = " ".join(out.read_text(errors="replace").split()[-40:])
                raise LaunchFailed(f"{Path(program).name} on {', '.join(some)} ended with {done.returncode}: {last}")
            return read_nccl_tests(out, "all_reduce")

        pairs = [(names[a], names[b]) for met in rounds_of(len(names)) for a, b in met]
        return run(names), {pair: run(pair).peak for pair in pairs}


def _starter(target: LaunchTarget, hosts: Sequence[str], devices: int) -> list[str]:
    """The command that starts the program on each device of these hosts."""
    if target.on.startswith("slurm"):
        nodes = [f"--nodes={len(hosts)}", f"--ntasks-per-node={devices}", f"--nodelist={','.join(hosts)}"]
        return ["srun", "--mpi=pmix", *nodes, *target.options]
    if target.on in ("ssh", "mpi", "mpich") and shutil.which("mpirun"):
        return ["mpirun", "-np", str(len(hosts) * devices), "--host", ",".join(f"{h}:{devices}" for h in hosts),
                *target.options]  # fmt: skip
    raise Unsupported(f"nccl-tests is started by srun or mpirun, not by --on {target.on}", hint="--on slurm, or mpi")

"""What MPI as transport costs a group: the step of two ranks over Gloo, Open MPI and MPICH, one after the other.

    .venv/bin/python benchmarks/mpi_transport.py

Real compute on this machine: a small convolutional network, whose gradient has 0.26 million numbers, or 4.3 million if
it is `wide`. Needs the Debian packages openmpi-bin and mpich; mpi4py is installed beside the PyTorch environment. A
library that is not there is left out. Over MPI a group balances like over Gloo, but it ends when a rank dies.
"""

from __future__ import annotations

import argparse
import ctypes.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lib import ranks
from lib.result import median_figure, parser_of, publish

BATCH, WARMUP, MPI4PY = 32, 20, "mpi4py==4.1.2"
HIDDEN = {"small": (256,), "wide": (2048, 1536)}
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"],
    "mpich": ["mpirun.mpich", "-np", "2"],
}


def main() -> int:
    """All transports in turn, so that what disturbs one disturbs the others."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="times that each runs; the median counts")
    parser.add_argument("--steps", type=int, default=60, help="counted steps of a run")
    parser.add_argument("--quick", action="store_true", help="one turn, few steps")
    parser.add_argument("--worker", nargs=3, metavar=("SIZE", "TRANSPORT", "RESULT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps = 1, 10
    if args.worker:
        worker(*args.worker, steps=args.steps)
        return 0
    ways = ["gloo", *(way for way, command in LAUNCHERS.items() if shutil.which(command[0]))]
    found: dict[str, list[float]] = {f"{size}, {way}": [] for size in HIDDEN for way in ways}
    for _ in range(args.turns):
        for name, values in found.items():
            values.append(seconds(*name.split(", "), steps=args.steps))
    figures = [median_figure(f"step, {name}", [1e3 * each for each in values], "ms") for name, values in found.items()]
    for name, values in found.items():
        size, way = name.split(", ")
        if way != "gloo":
            ratios = [mine / gloo for mine, gloo in zip(values, found[f"{size}, gloo"], strict=True)]
            figures.append(median_figure(f"step over Gloo's, {name}", ratios))
    return publish(args, figures, turns=found)


def seconds(size: str, way: str, *, steps: int) -> float:
    """The typical step of the slower rank."""
    with tempfile.TemporaryDirectory(prefix="paceline-mpi-") as text:
        folder = Path(text)
        transport = "gloo" if way == "gloo" else "mpi"
        told = ["--steps", str(steps), "--worker", size, transport, text]
        if way == "gloo":
            ranks.run(__file__, told, 2)
        else:
            command = [*LAUNCHERS[way], ranks.interpreter(), __file__, *told]
            done = subprocess.run(command, env=environment(way, folder), capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return max(json.loads(result.read_text()) for result in folder.glob("*.json"))


def environment(way: str, folder: Path) -> dict[str, str]:
    """Without an address or a secret: the ranks meet over MPI."""
    own = {name: value for name, value in ranks.environment(2).items() if not name.startswith("MASTER_")}
    own.pop("PACELINE_SECRET")
    own["PYTHONPATH"] = os.pathsep.join((own.get("PYTHONPATH", ""), str(mpi4py())))
    if way == "mpich":
        # Debian's MPICH has a name of its own for the library that others call libmpi.so.12.
        library = ctypes.util.find_library("mpich")
        (folder / "libmpi.so.12").symlink_to(next(library_paths(library)))
        own |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}
    return own


def library_paths(library: str | None) -> Iterator[Path]:
    """Where the linker finds it."""
    for line in subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if library and line.split()[:1] == [library]:
            yield Path(line.rsplit("=> ", 1)[1])


def mpi4py() -> Path:
    """Installed once, in a folder of its own."""
    from paceline.bench.environments import home

    folder = home() / "cache" / MPI4PY
    if not (folder / "mpi4py").is_dir():
        install = [ranks.interpreter(), "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), MPI4PY]
        subprocess.run(install, check=True)
    return folder


def worker(size: str, transport: str, folder: str, *, steps: int) -> None:
    """One rank."""
    from lib.real_loops import parts
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    from paceline.runtime import Settings, join

    model, optimizer, images, labels = parts(BATCH, HIDDEN[size])
    settings, ends = Settings(transport=transport), []
    with join(model, optimizer, TensorDataset(images, labels), global_batch=BATCH, settings=settings) as pace:
        rank = pace.rank
        for batch in pace.batches(steps=steps + WARMUP):
            pace.step(cross_entropy(model(batch.inputs), batch.targets))
            ends.append(time.perf_counter())
    typical = statistics.median(later - sooner for sooner, later in itertools.pairwise(ends[WARMUP:]))
    Path(folder, f"{rank}.json").write_text(json.dumps(typical), encoding="utf-8")
    print("null")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())

"""Plant a real slowdown in a real run, ask `explain` for its cause, remove it, and compare the gains, ten times.

    .venv/bin/python benchmarks/planted_causes.py                 measure both sides of every case, explain, compare
    .venv/bin/python benchmarks/planted_causes.py --only NAME     cases whose name contains this
    .venv/bin/python benchmarks/planted_causes.py --what table    only explain what --store holds

What --store (results/planted by default) already holds is not measured again; --anew measures all of it.
Needs root, for the namespaces of the virtual cluster, and the PyTorch environment.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from lib.planted_cases import CASES, Planted, Side, threads_of
from lib.planted_table import NEEDED, POINTS, judged
from lib.result import Figure, parser_of, publish

from paceline.bench import adapters
from paceline.bench.campaign import LaunchFinished
from paceline.bench.environments import prepare
from paceline.bench.frameworks.adapters import PyTorch
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.measure import measure
from paceline.bench.sites.site import Process
from paceline.bench.sites.target import LaunchTarget
from paceline.catalog import shipped_catalog
from paceline.measurements.store import Store
from paceline.spec.load import load_cases
from paceline.spec.study import Case

FOLDER = Path(__file__).parent / "lib"
LAUNCHES = 2


class PlantedPyTorch(PyTorch):
    """PyTorch whose workers have a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def refusal(self, case: Case) -> str | None:
        """Nothing: the fault may be a way to aggregate that DDP itself does not have."""
        return None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One faulty worker per rank."""
        env = {"PYTHONPATH": f"{launch.worker_path}:{FOLDER}", "PACELINE_PLANT": self.fault}
        return rank_processes(launch, "planted_worker", lambda placed: env)


def study_name(case: Planted, which: str) -> str:
    """The study's name in the store."""
    words = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    return f"{words}.{which}".replace("--", "-")


def write_study(case: Planted, which: str, folder: Path) -> Path:
    """The study's file, with its cluster beside it."""
    side: Side = getattr(case, which)
    clusters = ""
    if side.cluster:
        (folder / "cluster.toml").write_text(f'name = "planted"\n{side.cluster}')
        clusters = 'clusters = ["cluster.toml"]\n'
    head, strategy, rest = side.study.partition("[[strategy]]")
    lines = f'name = "{study_name(case, which)}"\nframeworks = ["pytorch"]\n{clusters}{head}\n{strategy}{rest}'
    protocol = f"""
[protocol]
launches = {LAUNCHES}
max_launches = {LAUNCHES + 1}
width = 0.1
warmup = 3
steps = 15
launch_budget = "3 s"
phase_steps = 6
threads = {threads_of(side)}
timeout = "90 s"
"""
    path = folder / "study.toml"
    path.write_text(lines + protocol)
    return path


def measure_side(case: Planted, which: str, store: Store) -> None:
    """Run one side of a case."""
    side: Side = getattr(case, which)
    adapters.ADAPTERS["pytorch"] = PlantedPyTorch(side.worker) if side.worker else PyTorch()
    with tempfile.TemporaryDirectory() as folder:
        study, cases = load_cases(write_study(case, which, Path(folder)), shipped_catalog())
        with measure(study, cases, store, target=LaunchTarget(on=side.on)) as measurement:
            for event in measurement.events:
                if isinstance(event, LaunchFinished):
                    failure = f": {event.run.failure.message}" if event.run.failure else ""
                    print(
                        f"{case.name}, {which}, launch {event.run.launch + 1}: {event.run.outcome}{failure}", flush=True
                    )


def is_measured(case: Planted, which: str, store: Store) -> bool:
    """Whether the store already holds enough launches of the newest campaign."""
    campaigns = store.read_campaigns(study_name(case, which))
    if not campaigns:
        return False
    runs = store.read_all(campaign=str(campaigns[-1]["campaign"]))
    counts = [sum(r.outcome == "ok" and r.case_id == name for r in runs) for name in campaigns[-1]["cases"]]
    return min(counts) >= LAUNCHES


def main() -> int:
    """Measure what is missing, then judge."""
    parser = parser_of(__doc__)
    parser.add_argument("--what", choices=("all", "table"), default="all")
    parser.add_argument("--store", type=Path, default=Path("results/planted"))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--anew", action="store_true", help="measure again what the store holds")
    args = parser.parse_args()
    chosen = [case for case in CASES if args.only in case.name]
    store = Store(args.store)
    if args.what == "all":
        prepare("pytorch", lambda line: None)
        for case in chosen:
            for which in ("planted", "removed"):
                if args.anew or not is_measured(case, which, store):
                    measure_side(case, which, store)
    rows = judged(chosen, store, study_name)
    num_named, num_close = sum(row["named"] for row in rows), sum(row["close"] for row in rows)
    figures = [
        Figure(f"of {len(chosen)} planted causes named first", num_named),
        Figure(f"of {len(chosen)} gains within {100 * POINTS:.0f} points", num_close),
        *(Figure(f"gain of {row['case']}, predicted less measured", 100 * row["off"], "points") for row in rows),
    ]
    needed = min(NEEDED, len(chosen))
    return publish(args, figures, turns=rows, passed=min(num_named, num_close) >= needed)


if __name__ == "__main__":
    sys.exit(main())

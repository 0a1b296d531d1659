"""Plan, then train, by the commands of the how-to: throughput as predicted and as reached, on three clusters.

    .venv/bin/python benchmarks/plan_train.py          (as root: hosts are control groups and network namespaces)

`own`: two real processors of this machine, one held to a quarter (examples/clusters/unequal-cpus.toml), from a profile
that `paceline.capture` takes. `unequal`: emulated devices at 4:2:1:1, 1 Gb/s between them. `slow link`: two hosts of
two equal emulated devices, 100 Mb/s between them, which the plan must make two groups. Then `paceline plan --output`
and `paceline train --plan`; the error of the plan is what `paceline train` prints at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib import ranks
from lib.result import Figure, parser_of, publish

ROOT = Path(__file__).parents[1]
OWN, OWN_BATCH, OWN_STEPS, CAPTURED = ROOT / "examples" / "clusters" / "unequal-cpus.toml", 320, 40, 24
EMULATED = ("unequal", "slow link")
MOST = 10.0
"""Percent that a plan may be off."""


def main() -> int:
    """Plan, train and compare on every cluster."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=["own", *EMULATED], help="one of the clusters")
    parser.add_argument("--turns", type=int, default=3, help="times that each is planned and trained")
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--worker", nargs=2, metavar=("WHAT", "VALUE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
    names = [args.only] if args.only else ["own", *EMULATED]
    rows = [row for _ in range(1 if args.quick else args.turns) for name in names for row in compared(name)]
    figures = []
    for name in names:
        errors = sorted(row["error"] for row in rows if row["cluster"] == name)
        figure = Figure(f"error of the plan, {name}", errors[len(errors) // 2], "%", errors[0], errors[-1])
        figures.append(figure)
    divided = all(row["groups"] > 1 for row in rows if row["cluster"] == "slow link")
    passed = divided and all(abs(figure.value) <= MOST for figure in figures)
    return publish(args, figures, turns=rows, passed=passed)


def compared(name: str) -> Iterator[dict[str, Any]]:
    """One plan, and what training with it came to."""
    with tempfile.TemporaryDirectory(prefix="paceline-plan-") as text:
        folder = Path(text)
        cluster, batch, script = own(folder) if name == "own" else emulated(folder, name)
        asked = ["--profile", folder / "one.profile", "--cluster", cluster, "--global-batch", batch]
        plan = json.loads(command("plan", *asked, "--output", folder / "plan.toml", "--json"))["candidates"][0]
        script = [str(word).replace("LOCAL_STEPS", str(plan["local_steps"])) for word in script]
        given = ["--cluster", cluster, "--plan", folder / "plan.toml", "--on", "virtual", "--json"]
        done = json.loads(command("train", script[0], *given, "--", *script[1:]))
    predicted, reached = done["predicted_throughput"], done["reached"]
    row = {"cluster": name, "groups": len(plan["groups"]), "predicted": predicted, "reached": reached}
    row["reached_90"] = done["reached_90"]
    row["error"] = round(100 * (predicted / reached - 1), 2)
    print(row, file=sys.stderr)
    yield row


def command(*words: Any) -> str:
    """What a command of Paceline prints."""
    argv = [sys.executable, "-m", "paceline", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def own(folder: Path) -> tuple[Path, int, list[Any]]:
    """This machine: profiled alone, by the loop that is trained later."""
    ranks.run(__file__, ["--worker", "capture", str(folder / "one.profile")], 1)
    return OWN, OWN_BATCH, [__file__, "--worker", "train", OWN_STEPS]


def emulated(folder: Path, name: str) -> tuple[Path, int, list[Any]]:
    """An emulated cluster, whose devices state their times."""
    from plan_accuracy import GIGABIT, GRADIENTS, LAYERS, SLOW, WORKER, Place, cluster_text, profile_of

    from paceline.measurements.profile import write_profile

    apart = Place(((2.0, 2.0), (2.0, 2.0)), bandwidth=SLOW, step=0.1)
    place = apart if name == "slow link" else Place(((4.0,), (2.0,), (1.0,), (1.0,)), bandwidth=GIGABIT)
    (folder / "cluster.toml").write_text(cluster_text(place), encoding="utf-8")
    write_profile(profile_of(place), folder / "one.profile")
    steps = max(64, 5 * 64 if len(place.speeds[0]) > 1 else 0)
    return folder / "cluster.toml", place.batch, [WORKER, folder, place.batch, GRADIENTS, LAYERS, "LOCAL_STEPS", steps]


def worker(what: str, value: str) -> None:
    """The training script of `own`, and the same loop with a profile taken of it."""
    from lib.real_loops import captured, trained

    if what == "capture":
        captured(Path(value), batch=OWN_BATCH // 2, steps=CAPTURED)
        ranks.finish(None)
    trained("paceline", batch=OWN_BATCH, steps=int(value))
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())

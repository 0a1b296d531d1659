"""The pipeline job of the straggler study (OSDI 2025): our replay of its operations beside the published answer.

    .venv/bin/python benchmarks/straggler_job.py --data FOLDER

FOLDER has `trace.parquet` and `result.json` of one job of ByteDance-Seed/StragglerAnalysis, which this repository does
not ship; without a folder nothing is checked. Printed are the step as replayed and without stragglers, each over the
published one, the slowdown that the worst stage causes by itself, and the largest difference of any published slowdown,
by stage, data-parallel rank or kind of operation, of the job or of one step. Passed: both steps within 2 %, every
slowdown within 0.02, and the published worst stage is named first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.explain.replay import Replay, replay
from paceline.measurements.foreign.operations import read_operations

WITHIN = 0.02
SPLITS = {"by_stage": "stage", "by_dp_rank": "dp_rank", "by_kind": "optype"}
"""Our names of what was published."""


def compare(folder: Path) -> tuple[list[Figure], dict[str, Any], bool]:
    """Figures, everything that was found, and whether it agrees with what was published."""
    published = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    start = time.perf_counter()
    found = replay(read_operations(folder / "trace.parquet"))
    seconds = time.perf_counter() - start
    replayed, ideal = (fmean(published[name].values()) for name in ("step_t_nodelay", "step_t_noblk"))
    stages = published["blocking_decompose_by_stage"]
    worst = next(iter(found.by_stage))
    figures = [
        Figure("step as measured", found.measured_s, "s"),
        Figure("step as replayed", found.replayed_s, "s"),
        Figure("step as replayed, over published", found.replayed_s / replayed),
        Figure("step without stragglers", found.ideal_s, "s"),
        Figure("step without stragglers, over published", found.ideal_s / ideal),
        Figure(f"slowdown by stage {worst}", found.by_stage[worst]),
        Figure(f"slowdown by stage {worst}, over published", found.by_stage[worst] / stages[worst]),
        Figure("largest difference of a slowdown", (apart := _apart(found, published))),
        Figure("time of the analysis", seconds, "s"),
    ]
    near = all(
        abs(ours / theirs - 1) <= WITHIN for ours, theirs in ((found.replayed_s, replayed), (found.ideal_s, ideal))
    )
    near &= apart <= WITHIN
    return (
        figures,
        {"replay": {name: value for name, value in vars(found).items() if name != "by_step"}},
        near and worst == max(stages, key=lambda stage: float(stages[stage])),
    )


def _apart(found: Replay, published: dict[str, Any]) -> float:
    """The largest difference of a slowdown that was published."""
    apart = [0.0]
    for ours, theirs in SPLITS.items():
        name = f"blocking_decompose_by_{theirs}"
        apart += [abs(getattr(found, ours)[key] - value) for key, value in (published.get(name) or {}).items()]
        for step, split in (published.get(f"{name}_per_step") or {}).items():
            apart += [abs(found.by_step[step][ours][key] - value) for key, value in split.items()]
        split = published.get(f"launch_decompose_by_{theirs}") or {}
        apart += [abs(found.delays[ours][key] - value) for key, value in split.items()]
    return max(apart)


def main() -> int:
    """Compare the job, if it is at hand."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder of trace.parquet and result.json")
    args = parser.parse_args()
    if args.data is None:
        print("the job is not at hand: --data FOLDER")
        return 0
    figures, turns, passed = compare(args.data)
    return publish(args, figures, turns=turns, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

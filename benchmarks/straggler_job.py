"""The pipeline job of the straggler study (OSDI 2025): our replay of its operations beside the published answer.

    .venv/bin/python benchmarks/straggler_job.py --data FOLDER

FOLDER has `trace.parquet` and `result.json` of one job of ByteDance-Seed/StragglerAnalysis, which this repository does
not ship; without a folder nothing is checked. Printed are the step as replayed and without stragglers, each over the
published one, and the slowdown that the worst stage causes by itself. Passed: both steps within 2 %, and the published
worst stage is named first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.explain.replay import replay
from paceline.measurements.foreign.operations import read_operations

WITHIN = 0.02


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
        Figure("time of the analysis", seconds, "s"),
    ]
    near = all(
        abs(ours / theirs - 1) <= WITHIN for ours, theirs in ((found.replayed_s, replayed), (found.ideal_s, ideal))
    )
    return figures, {"replay": vars(found)}, near and worst == max(stages, key=lambda stage: float(stages[stage]))


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

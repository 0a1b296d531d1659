"""What does `paceline watch` cost? Watched steps against bare ones, in turn within one process.

Each turn runs the same step watched and bare alternately, and compares the medians; hooks are taken out for every bare
step. Seconds are those of the processor, which other load of the machine hardly touches: one thread computes, and never
waits; the ratio of seconds on the wall is printed beside it. `every` watches each step, `sampling` one of 20. Asked:
at most 2 % and 0.3 % of the step. One rank.

    .venv/bin/python benchmarks/watch_overhead.py --turns 30
    .venv/bin/python benchmarks/watch_overhead.py --quick
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lib.result import Figure, parser_of, publish

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.measurements.summary import Interval, speedup_interval

WORKER = Path(__file__).parent / "lib" / "watch_worker.py"
MODELS = ("resnet20", "gpt")
MODES = {"every": 1, "sampling": 20}
ALLOWED = {"every": 1.02, "sampling": 1.003}


def main() -> int:
    """Run the turns of each model and mode, and print the ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="watched steps of a turn, and as many bare ones")
    parser.add_argument("--quick", action="store_true", help="6 turns of 10 steps")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.steps = 6, 10
    python = environment_python(prepare("pytorch", lambda line: None))
    figures, turns, passed = [], {}, True
    for model in MODELS:
        for mode, every in MODES.items():
            pairs = _pairs(python, model, every, options.turns, options.steps)
            ratio, wall = _ratio([pair[:2] for pair in pairs]), _ratio([pair[2:] for pair in pairs])
            figures.append(
                Figure(f"{model}, {mode}: watched over bare step", ratio.value, "", ratio.low, ratio.high, "95 %")
            )
            figures.append(
                Figure(f"{model}, {mode}: the same, on the wall", wall.value, "", wall.low, wall.high, "95 %")
            )
            turns[f"{model}, {mode}"] = pairs
            passed &= ratio.low <= ALLOWED[mode]
    return publish(options, figures, turns=turns, passed=passed)


def _ratio(pairs: list[list[float]]) -> Interval:
    rounds = (range(len(pairs)), range(len(pairs)))
    return speedup_interval([watched for watched, _ in pairs], [bare for _, bare in pairs], rounds=rounds)


def _pairs(python: Path, model: str, every: int, turns: int, steps: int) -> list[list[float]]:
    """Median seconds of watched and of bare steps, by turn: of the processor, then on the wall."""
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    command = [str(python), str(WORKER), model, str(every), str(turns), str(steps)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    found: list[list[float]] = json.loads(text.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())

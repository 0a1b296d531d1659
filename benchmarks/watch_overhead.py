"""What does `paceline watch` cost? Watched steps against bare ones, in turn within one process.

What the hooks cost does not depend on the model: they are on the outermost module, the backward pass, the optimiser and
four gradients. So it is measured on a network of four small layers, whose step is short enough to show microseconds,
and put beside the step of each model. `every` watches each step; `sampling` watches one of 20, and in the others the
hooks rest: each tests one flag. As a check, each turn also runs the model's own step watched, resting and bare in
rotation; the noise of such steps is larger than what the hooks cost, so that no bound is asked of it. Seconds are those
of the processor, which other load of the machine hardly touches; those on the wall are in the stored turns. On two
ranks, each has a core, and DistributedDataParallel exchanges by gloo. Asked: at most 2 % and 0.3 % of the step, by the
upper end of the interval.

    .venv/bin/python benchmarks/watch_overhead.py --turns 30 --steps 1
    .venv/bin/python benchmarks/watch_overhead.py --turns 30 --steps 1 --ranks 2
    .venv/bin/python benchmarks/watch_overhead.py --quick
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.measurements.summary import Interval, speedup_interval

WORKER = Path(__file__).parent / "lib" / "watch_worker.py"
MODELS = ("resnet20", "resnet50", "gpt")
SHARES = {"every": 1.0, "sampling": 0.05}
"""Share of the steps that are watched."""
ALLOWED = {"every": 1.02, "sampling": 1.003}
Turn = dict[str, list[float]]


def main() -> int:
    """Run the turns of each model, and print the ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10, help="watched steps of a turn; as many resting and bare ones")
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="4 turns of 5 steps")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.steps = 4, 5
    python = environment_python(prepare("pytorch", lambda line: None))
    figures, turns, passed = [], {}, True
    for model in options.models:
        turns[model] = _turns(python, model, options)
        for mode, share in SHARES.items():
            ratio = _ratio(turns[model], share)
            figures.append(Figure(f"{model}, {mode}: watched over bare", *_parts(ratio)))
            passed &= ratio.high <= ALLOWED[mode]
        check = speedup_interval(*([turn[mode][0] for turn in turns[model]] for mode in ("watched", "bare")),
                                 rounds=_rounds(turns[model]))  # fmt: skip
        figures.append(Figure(f"{model}, every: by its own steps", *_parts(check)))
        for mode in ("watched", "resting"):
            cost = median(turn[f"hooks {mode}"][0] for turn in turns[model])
            figures.append(Figure(f"{model}: hooks of a {mode} step", 1e6 * cost, "us"))
    return publish(options, figures, turns=turns, passed=passed)


def _parts(ratio: Interval) -> tuple[float, str, float, float, str]:
    return ratio.value, "", ratio.low, ratio.high, "95 %"


def _rounds(turns: list[Turn]) -> tuple[range, range]:
    return range(len(turns)), range(len(turns))


def _ratio(turns: list[Turn], share: float) -> Interval:
    """Seconds with hooks over seconds without, where this share of the steps is watched."""
    hooks = [share * turn["hooks watched"][0] + (1 - share) * turn["hooks resting"][0] for turn in turns]
    bare = median(turn["bare"][0] for turn in turns)
    return speedup_interval([bare + cost for cost in hooks], [bare] * len(turns), rounds=_rounds(turns))


def _turns(python: Path, model: str, options: Any) -> list[Turn]:
    """Median seconds of each mode by turn, of rank 0: of the processor, and on the wall."""
    command = [str(python), str(WORKER), model, str(options.turns), str(options.steps)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "WORLD_SIZE": str(options.ranks),
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**env, "RANK": str(rank)})
        for rank in range(options.ranks)
    ]
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{model}: a rank ended with {[rank.returncode for rank in ranks]}")
    found: list[Turn] = json.loads(texts[0].splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())

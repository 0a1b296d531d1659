"""Does measuring slow down what is measured? Throughput under `paceline run` against a bare PyTorch script.

Both do the same work: the same network, batch, optimiser and threads. They run in turn within one session of this
script, so that drift of the machine's speed affects both alike; the ratio of medians comes with its t interval, as two
groups and as pairs.

    .venv/bin/python benchmarks/harness_overhead.py --pairs 12
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import tomllib
from pathlib import Path

from lib.result import Figure, parser_of, publish

from paceline.bench.environments import environment_python, prepare
from paceline.bench.measure import measure
from paceline.catalog import shipped_catalog
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.measurements.summary import speedup_interval
from paceline.spec.study import Study, expand

BARE = Path(__file__).parent / "lib" / "bare_pytorch.py"
STUDY = """
name = "overhead"
networks = ["resnet20"]
frameworks = ["pytorch"]
batch = [{batch}]
[protocol]
launches = 1
max_launches = 1
warmup = 10
steps = {steps}
launch_budget = "60 s"
phases = false
threads = 1
"""


def main() -> None:
    """Run the pairs and print the ratio."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    python = environment_python(prepare("pytorch", lambda line: None))
    pairs = []
    for index in range(options.pairs):
        order = (bare, under_paceline) if index % 2 else (under_paceline, bare)
        rates = {run.__name__: run(python, options.batch, options.steps) for run in order}
        pairs.append((rates["under_paceline"], rates["bare"]))
        print(f"pair {index + 1:2d}: paceline {pairs[-1][0]:8.1f}  bare {pairs[-1][1]:8.1f} samples/s", flush=True)
    ratio = speedup_interval([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
    turns = (range(len(pairs)), range(len(pairs)))
    paired = speedup_interval([ours for ours, _ in pairs], [theirs for _, theirs in pairs], rounds=turns)
    named = {"throughput over a bare loop": ratio, "the same, paired": paired}
    figures = [Figure(name, item.value, "", item.low, item.high, "95 %") for name, item in named.items()]
    publish(options, figures, turns=pairs)


def under_paceline(python: Path, batch: int, steps: int) -> float:
    """Samples per second of one launch by the campaign, as `paceline run` makes it."""
    study = Study.model_validate_json(json.dumps(tomllib.loads(STUDY.format(batch=batch, steps=steps))))
    cases = expand(study, shipped_catalog())
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        with measure(study, cases, store) as measurement:
            for _ in measurement.events:
                pass
        return load_launches(store, measurement.campaign)[0].throughputs[0]


def bare(python: Path, batch: int, steps: int) -> float:
    """Samples per second of the bare script."""
    command = [str(python), str(BARE), str(batch), str(steps)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()

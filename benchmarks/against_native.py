"""Paceline's throughput of a framework against that framework's own bare idiomatic loop, in one interleaved run.

Both train LeNet, batch 128 per rank, a core for each rank; Horovod runs two ranks, the others one. They run in turn
within one session, so that drift of the machine's speed affects both alike. Passes if the ratio of medians is at
least 0.97 for every framework.

    .venv/bin/python benchmarks/against_native.py [FRAMEWORK ...] --pairs 6
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from lib.result import Figure, parser_of, publish

from paceline.bench.environments import environment_python, environment_variables, prepare
from paceline.bench.measure import measure
from paceline.catalog import shipped_catalog
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.measurements.summary import speedup_interval
from paceline.spec.study import Study, expand

ENVIRONMENTS = {
    "pytorch": "pytorch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "mxnet": "mxnet",
    "horovod": "horovod-pytorch",
}
NATIVE = Path(__file__).parent / "lib" / "native_loops.py"
HOROVODRUN = "from horovod.runner.launch import run_commandline; run_commandline()"
LEAST = 0.97
STUDY = """
name = "native"
networks = ["lenet"]
frameworks = ["{framework}"]
devices = [{ranks}]
batch = [{batch}]
[protocol]
launches = 1
max_launches = 1
warmup = 30
steps = {steps}
launch_budget = "60 s"
phases = false
threads = 1
"""


def main() -> None:
    """Run the pairs, print the ratios."""
    parser = parser_of(__doc__)
    parser.add_argument("frameworks", nargs="*", default=list(ENVIRONMENTS))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    chosen = options.frameworks or list(ENVIRONMENTS)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for index in range(options.pairs):
        for name in chosen:
            order = (native, under_paceline) if index % 2 else (under_paceline, native)
            rates = {run.__name__: run(name, options.batch, options.steps) for run in order}
            pairs[name].append((rates["under_paceline"], rates["native"]))
    figures = [_ratio(name, rows) for name, rows in pairs.items()]
    sys.exit(publish(options, figures, turns=pairs, passed=all(figure.value >= LEAST for figure in figures)))


def _ratio(name: str, rows: list[tuple[float, float]]) -> Figure:
    turns = (range(len(rows)), range(len(rows)))
    ratio = speedup_interval([ours for ours, _ in rows], [theirs for _, theirs in rows], rounds=turns)
    return Figure(f"throughput over its own loop, {name}", ratio.value, "", ratio.low, ratio.high, "95 %")


def under_paceline(name: str, batch: int, steps: int) -> float:
    """Samples per second of one launch by the campaign, as `paceline run` makes it."""
    text = STUDY.format(framework=name, ranks=2 if name == "horovod" else 1, batch=batch, steps=steps)
    study = Study.model_validate_json(json.dumps(tomllib.loads(text)))
    prepare(ENVIRONMENTS[name])
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        with measure(study, expand(study, shipped_catalog()), store) as measurement:
            for _ in measurement.events:
                pass
        return load_launches(store, measurement.campaign)[0].throughputs[0]


def native(name: str, batch: int, steps: int) -> float:
    """Samples per second of the bare loop."""
    environment = ENVIRONMENTS[name]
    python = environment_python(prepare(environment))
    command = [str(python), str(NATIVE), name, str(batch), str(steps)]
    if name == "horovod":
        command = [str(python), "-c", HOROVODRUN, "--gloo", "-np", "2", *command]
    env = {**os.environ, **environment_variables(environment)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    return float(output.split("samples/s")[1].split()[0])


if __name__ == "__main__":
    main()

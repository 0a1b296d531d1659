"""Random single bit flips over stored runs, campaigns and checkpoints: how many are noticed when the data is read.

.venv/bin/python benchmarks/bit_flips.py --flips 400

Every second flip hits a store (any byte of any file), the others a checkpoint of a small network with its optimizer.
A flip is detected if reading names the damaged file; harmless if everything that is read equals what was written
(spaces of a JSON header); missed otherwise. The checkpoints need the PyTorch environment.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from lib.result import Figure, parser_of, publish

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.made import Made, write  # noqa: E402

from paceline.bench.environments import environment_python, prepare, worker_path  # noqa: E402
from paceline.measurements.repair import inspect_store  # noqa: E402
from paceline.measurements.store import Store  # noqa: E402


def content_of(root: Path) -> tuple[list[Any], bool]:
    """Everything that a store says, and whether it names damage."""
    store = Store(root)
    found = inspect_store(store)
    runs = [store.load(run.id) for run in found.runs]
    documents = [store.read_campaign(store.campaigns / f"{name}.json")[0] for name in found.campaigns]
    said = [[item.run, item.steps.to_pydict(), item.spans.to_pydict()] for item in runs] + documents
    return said, bool(found.damaged or found.newer)


def flip_store(folder: Path, flips: int, seed: int) -> list[dict[str, Any]]:
    """Outcome of each flip of a store."""
    chance = random.Random(seed)
    write(folder, [Made(ranks=1), Made(ranks=2, aggregate=0.02)])
    sound, _ = content_of(folder)
    files = sorted(path for part in ("runs", "campaigns") for path in (folder / part).rglob("*") if path.is_file())
    turns = []
    for _ in range(flips):
        path = chance.choice(files)
        data = path.read_bytes()
        bit = chance.randrange(8 * len(data))
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        said, named = content_of(folder)
        path.write_bytes(data)
        outcome = "detected" if named else "harmless" if said == sound else "missed"
        turns.append({"file": str(path.relative_to(folder)), "bit": bit, "outcome": outcome})
    return turns


def flip_checkpoints(folder: Path, flips: int, seed: int) -> list[dict[str, Any]]:
    """Outcome of each flip of a checkpoint, found by a process with torch."""
    python = environment_python(prepare("pytorch"))
    worker = Path(__file__).parent / "lib" / "flip_worker.py"
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run(
        [python, worker, folder, str(flips), str(seed)], env=env, capture_output=True, text=True, check=True
    )
    turns: list[dict[str, Any]] = json.loads(done.stdout)
    return turns


def main() -> int:
    """Print detected, harmless and missed flips; 0 if none was missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        turns = flip_store(Path(folder) / "store", args.flips // 2, args.seed)
        turns += flip_checkpoints(Path(folder), args.flips - len(turns), args.seed)
    counts = Counter(turn["outcome"] for turn in turns)
    figures = [Figure(f"bit flips {name}", counts[name]) for name in ("detected", "harmless", "missed")]
    return publish(args, figures, turns=turns, passed=counts["missed"] == 0)


if __name__ == "__main__":
    sys.exit(main())

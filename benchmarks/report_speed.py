"""How long a report of 2,000 stored runs takes, from the command's start to the file on disk, and how large it is.

.venv/bin/python benchmarks/report_speed.py --runs 2000
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib.result import Figure, parser_of, publish

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.made import Made, write  # noqa: E402

LIMIT_S, LIMIT_BYTES = 10.0, 3_000_000


def cases_of(runs: int) -> list[Made]:
    """Five launches each of cases over ranks, batches and buckets."""
    wanted = runs // 5
    return [
        Made(
            ranks=2 ** (number % 4),
            batch=8 * 2 ** (number // 4 % 5),
            aggregate=0.0005 * (number % 7) if number % 4 else 0.0,
            strategy={"name": f"bucket-{number // 20}", "bucket": 65536.0 * (number // 20 + 1)},
            launches=5,
        )
        for number in range(wanted)
    ]


def measure(store: Path, runs: int) -> tuple[float, int]:
    """Seconds of the command and bytes of the page."""
    write(store, cases_of(runs), study="many", campaign="many-1")
    page = store / "page.html"
    begin = time.monotonic()
    command = [sys.executable, "-m", "paceline", "report", "many", "--store", str(store), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return time.monotonic() - begin, page.stat().st_size


def main() -> int:
    """Print both figures; 0 if they are within the limits."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, size = measure(Path(folder), args.runs)
    figures = [Figure("time of the report", seconds, "s"), Figure("size of the page", size / 1e6, "MB")]
    passed = seconds <= LIMIT_S and size <= LIMIT_BYTES
    return publish(args, figures, turns={"seconds": seconds, "bytes": size}, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

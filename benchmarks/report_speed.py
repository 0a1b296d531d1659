"""How long a report of 2,000 stored runs takes, from the command's start to the file on disk, and how large it is.

python benchmarks/report_speed.py [--runs 2000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        seconds, size = measure(Path(folder), runs)
    print(
        f"{runs} runs: report in {seconds:.1f} s (limit {LIMIT_S:g}), {size / 1e6:.2f} MB (limit {LIMIT_BYTES / 1e6:g})"
    )
    return 0 if seconds <= LIMIT_S and size <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())

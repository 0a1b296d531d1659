"""What an all-reduce takes from the computation beside it, against the processor time that it uses by itself.

    .venv/bin/python benchmarks/message_effort.py

Two ranks with one thread each. For every size: seconds of an all-reduce that nothing runs beside (`alone`), the
processor time of one rank in it (`processor`), and how much longer the same matrix products take when all-reduces run
beside them, for each all-reduce (`felt`). Medians over turns, in microseconds. Buckets are arranged by `processor`,
which can be measured before the first step; `felt` is what it stands for. `swap` is `alone` and `processor` of the way
that Paceline takes with two ranks: each hands the other all it has, in one message, and adds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from lib import ranks
from lib.result import Figure, parser_of, publish

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20)
MEANINGS = {"alone": "all-reduce", "processor": "processor time of it", "felt": "time it adds to computation"}
REPEATS, PARTS, TURNS, WIDTH, PRODUCTS = 50, 40, 10, 96, 100


def main() -> None:
    """Run both ranks and print what the first one saw."""
    parser = parser_of(__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker()
    rows = ranks.run(__file__, ["--worker"], 2)[0]
    figures = [
        Figure(f"{meaning}, {row['bytes'] // 1024} KiB", row[name], "us")
        for row in rows
        for name, meaning in MEANINGS.items()
    ]
    publish(args, figures, turns=rows)


def worker() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    square = torch.randn(WIDTH, WIDTH)

    def seconds(tensor: torch.Tensor | None) -> float:
        """Of all parts of the computation, with an all-reduce beside every second one."""
        dist.barrier()
        begin, under_way = time.perf_counter(), []
        for part in range(PARTS):
            if tensor is not None and part % 2 == 0:
                under_way.append(dist.all_reduce(tensor, async_op=True))
            for _ in range(PRODUCTS):
                square @ square
        for work in under_way:
            work.wait()
        return time.perf_counter() - begin

    rows = []
    for size in SIZES:
        tensor, taken = torch.zeros(size // 4), torch.zeros(size // 4)
        splits = [0, len(tensor)] if dist.get_rank() == 0 else [len(tensor), 0]

        def swap(tensor: torch.Tensor = tensor, taken: torch.Tensor = taken, splits: list[int] = splits) -> None:
            dist.all_to_all_single(taken, tensor, splits, splits)
            tensor.add_(taken)

        alone, processor = _timed(lambda tensor=tensor: dist.all_reduce(tensor))
        longer = [seconds(tensor) - seconds(None) for _ in range(TURNS)]
        felt = round(1e6 * statistics.median(longer) / (PARTS / 2))
        rows.append({"bytes": size, "alone": alone, "processor": processor, "felt": felt, "swap": _timed(swap)})
    ranks.finish(rows)


def _timed(once: Callable[[], object]) -> tuple[int, int]:
    """Microseconds by the clock and of this process's processor time."""
    once()
    moment, spent = time.perf_counter(), time.process_time()
    for _ in range(REPEATS):
        once()
    return round(1e6 * (time.perf_counter() - moment) / REPEATS), round(1e6 * (time.process_time() - spent) / REPEATS)


if __name__ == "__main__":
    main()

"""Equal devices with real compute: the throughput of Paceline's group over that of DistributedDataParallel.

python benchmarks/equal.py --json

Two ranks with one thread each train a small convolutional network; the two ways run in turn, several times. Printed
are samples per second of both (`paceline`, `ddp`; medians over the turns) and the median and range of their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import ranks

BATCH, WARMUP = 64, 20


def main() -> None:
    """Run both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="times that both run")
    parser.add_argument("--steps", type=int, default=80, help="counted steps of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    result: dict[str, Any]
    for _ in range(args.turns):
        for way, values in found.items():
            values.append(ranks.run(__file__, ["--worker", way, "--steps", str(args.steps)], 2)[0])
    ratios = [mine / theirs for mine, theirs in zip(found["paceline"], found["ddp"], strict=True)]
    result = {way: round(statistics.median(values), 1) for way, values in found.items()}
    result |= {"ratio": round(statistics.median(ratios), 4), "range": [round(min(ratios), 4), round(max(ratios), 4)]}
    print(json.dumps(result) if args.json else f"Paceline reaches {result['ratio']:.3f} of DDP's throughput")


def worker(way: str, steps: int) -> None:
    """One rank: the median step."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(4 * BATCH, 3, 32, 32), torch.randint(10, (4 * BATCH,))
    ends = (by_paceline if way == "paceline" else by_ddp)(model, optimizer, images, labels, steps + WARMUP)
    times = [after - before for before, after in zip(ends[WARMUP:], ends[WARMUP + 1 :], strict=False)]
    ranks.finish(BATCH / statistics.median(times))


def by_paceline(model, optimizer, images, labels, steps):
    """The runtime's loop."""
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    ends = []
    with join(model, optimizer, TensorDataset(images, labels), global_batch=BATCH) as pace:
        for batch in pace.batches(steps=steps):
            pace.step(cross_entropy(model(batch.inputs), batch.targets))
            ends.append(time.perf_counter())
    return ends


def by_ddp(model, optimizer, images, labels, steps):
    """DistributedDataParallel as its documentation teaches it."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    ends = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH // 2,))
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(wrapped(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    dist.barrier()
    return ends


if __name__ == "__main__":
    main()

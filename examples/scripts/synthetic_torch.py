"""An ordinary training script: it does not use Paceline, and prints its speed in its own format."""

import argparse
import time

import torch
from torch import nn


def main() -> None:
    """Train a small network on synthetic data."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-iters", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))
    for index in range(args.num_iters):
        begin = time.perf_counter()
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data), target).backward()
            optimizer.step()
        rate = 10 * args.batch_size / (time.perf_counter() - begin)
        print(f"Iter #{index}: {rate:.1f} img/sec per CPU", flush=True)


if __name__ == "__main__":
    main()

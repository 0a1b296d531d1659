"""ResNet-20 for CIFAR trained by a plain PyTorch loop, with no Paceline in the process; prints samples per second.

python benchmarks/bare_pytorch.py BATCH STEPS
"""

from __future__ import annotations

import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402


class Block(nn.Module):
    """Two 3x3 convolutions around a parameter-free shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.side = stride, (width - width_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.side:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.side, self.side))
        return F.relu(x + y)


def network() -> nn.Module:
    """ResNet-20."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for width_in, width in ((16, 16), (16, 32), (32, 64)):
        layers.append(Block(width_in, width, width // width_in))
        layers += [Block(width, width, 1) for _ in range(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    """Warm up, time, print."""
    batch, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, targets = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def step() -> None:
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    print(batch * steps / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()

"""Train ResNet-20 on synthetic, learnable images of CIFAR's shape, on unequal machines.

torchrun --nproc-per-node 2 train_cifar.py
paceline train train_cifar.py --cluster my-cluster.toml

Each class is a fixed pattern; an image is its class's pattern, shifted, under noise. GroupNorm in place of BatchNorm
makes the result independent of how batches are split.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.runtime import join

CLASSES = 10


class Block(nn.Module):
    """Two convolutions with a shortcut connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """The sum of convolutions and shortcut."""
        return torch.relu(self.path(images) + self.shortcut(images))


def resnet20(width: int = 16) -> nn.Module:
    """Three stages of three blocks."""
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU()]
    inputs = width
    for stage in range(3):
        for index in range(3):
            outputs = width * 2**stage
            blocks.append(Block(inputs, outputs, 2 if stage and not index else 1))
            inputs = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def images(count: int, seed: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Shifted patterns of ten classes under noise."""
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    patterns = nn.functional.avg_pool2d(patterns, 5, 1, 2) * 3
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shifts = torch.randint(-3, 4, (count,), generator=generator).tolist()
    shifted = torch.stack([patterns[label].roll(shift, 2) for label, shift in zip(labels, shifts, strict=True)])
    return shifted + noise * torch.randn(shifted.shape, generator=generator), labels


def main() -> None:
    """Train and print the accuracy on new images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--width", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = resnet20(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with join(model, optimizer, TensorDataset(*images(args.samples, seed=1)), global_batch=64) as pace:
        for batch in pace.batches(epochs=args.epochs):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
            pace.step(loss)
        if pace.rank == 0:
            test, labels = images(200, seed=2)
            with torch.no_grad():
                accuracy = (model(test).argmax(1) == labels).float().mean().item()
            print(f"accuracy {accuracy:.3f} after {pace.position.step} steps, shares {pace.shares}")  # noqa: T201


if __name__ == "__main__":
    main()

"""The network of the emulated benchmarks: real gradients of any size, next to no work for the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.runtime.emulate import Emulated, emulate


class Scale(nn.Module):
    """Multiplies by one number, and holds as many as asked; all of them have gradients that travel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scaled inputs."""
        return inputs * self.weight[0]


def network(gradient_bytes: float, device: Emulated, layers: int = 8) -> nn.Module:
    """Layers with gradients of so many bytes together, as slow as the device."""
    model = nn.Sequential(*(Scale(max(1, round(gradient_bytes / 4 / layers))) for _ in range(layers)))
    emulate(model, device)
    return model

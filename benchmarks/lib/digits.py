"""scikit-learn's handwritten digits as a problem to learn: real images, a network of any width, accuracy held out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

HELD_OUT = 500


class Problem:
    """Samples to train on, samples held out, and a model; a subclass shuffles its data before it hands them over."""

    def __init__(self, samples: Tensor, labels: Tensor, held_out: int, model: nn.Module) -> None:
        self.images, self.labels = samples[held_out:], labels[held_out:]
        self.held_images, self.held_labels = samples[:held_out], labels[:held_out]
        self.model = model

    def optimizer(self, told: dict[str, Any]) -> torch.optim.Optimizer:
        """Plain or Nesterov."""
        momentum = told["momentum"]
        return torch.optim.SGD(self.model.parameters(), lr=told["rate"], momentum=momentum, nesterov=momentum > 0)

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of some samples; a text has a label at each of its characters."""
        return nn.functional.cross_entropy(self.model(images).flatten(0, -2), labels.flatten())

    def accuracy(self) -> float:
        """On what was held out."""
        with torch.no_grad():
            return float((self.model(self.held_images).argmax(-1) == self.held_labels).float().mean())


class Digits(Problem):
    """Images of 8 x 8 pixels, and a network with the start that a seed gives it."""

    def __init__(self, seed: int, hidden: Sequence[int]) -> None:
        data = load_digits()
        order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
        images, labels = torch.tensor(data.data / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]
        torch.manual_seed(seed)
        sizes = [64, *hidden, 10]
        layers: list[nn.Module] = []
        for index in range(len(sizes) - 1):
            layers += [nn.Linear(sizes[index], sizes[index + 1]), nn.ReLU()]
        self.linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        super().__init__(images, labels, HELD_OUT, nn.Sequential(*layers[:-1]))

    def accuracy(self) -> float:
        """On what was held out; past the emulated device, whose time this must not take."""
        hidden = self.held_images
        with torch.no_grad():
            for layer in self.linear:
                hidden = nn.functional.linear(hidden, layer.weight, layer.bias)
                hidden = torch.relu(hidden) if layer is not self.linear[-1] else hidden
        return float((hidden.argmax(1) == self.held_labels).float().mean())


class Watch:
    """When an accuracy was first seen at so many looks in a row, and what it was in the end."""

    def __init__(self, wanted: float, looks: int) -> None:
        self._wanted, self._looks = wanted, looks
        self._row: list[float] = []
        self._begin = time.perf_counter()

    def begin(self) -> None:
        """The first step begins now."""
        self._begin = time.perf_counter()

    def look(self, accuracy: float, now: float | None = None) -> None:
        """After a step; `now` where time is not real."""
        if not self.reached:
            now = time.perf_counter() - self._begin if now is None else now
            self._row = [*self._row, now] if accuracy >= self._wanted else []

    @property
    def reached(self) -> bool:
        """Whether it was seen often enough."""
        return len(self._row) >= self._looks

    def result(self, final: float, now: float | None = None) -> dict[str, Any]:
        """As JSON data; never reached counts as twice the whole time."""
        whole = time.perf_counter() - self._begin if now is None else now
        return {"seconds": self._row[0] if self.reached else 2 * whole, "reached": self.reached, "final": final}

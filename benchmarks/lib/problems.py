"""Problems to learn of three shapes: digits, pictures of CIFAR's shape, text; all real training of small networks."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib.digits import Digits, Problem

SAMPLES, HELD_OUT = 1580, 300
KINDS, SIDE, SHIFT, NOISE = 10, 32, 6, 1.5
WINDOW, WIDTH, HEADS = 24, 32, 4
PICTURES_RATE, ADAM_RATE = 0.25, 0.01
"""Of the optimizer for a rate of 1 of the grid, which is made for digits."""


class Pictures(Problem):
    """Ten patterns in 3 x 32 x 32 pixels, each shifted at random and hidden in noise; a convolutional network."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*_pictures(), HELD_OUT, nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, KINDS)))

    def optimizer(self, told: dict[str, Any]) -> torch.optim.Optimizer:
        """As for digits, with smaller steps."""
        return super().optimizer({**told, "rate": told["rate"] * PICTURES_RATE})


@functools.cache
def _pictures() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    small = torch.randn(KINDS, 3, SIDE // 4, SIDE // 4, generator=chance)
    patterns = nn.functional.interpolate(small, size=SIDE, mode="bilinear")
    labels = torch.randint(KINDS, (SAMPLES,), generator=chance)
    shifts = torch.randint(-SHIFT, SHIFT + 1, (SAMPLES, 2), generator=chance)
    images = torch.stack([patterns[label].roll(tuple(by), (1, 2)) for label, by in zip(labels, shifts, strict=True)])
    return images + NOISE * torch.randn(images.shape, generator=chance), labels


class Text(Problem):
    """Windows of the source of Python's argparse, each character from those before it; a decoder of two blocks."""

    def __init__(self, seed: int) -> None:
        samples, labels, characters = _windows()
        torch.manual_seed(seed)
        super().__init__(samples, labels, HELD_OUT, Decoder(characters))

    def optimizer(self, told: dict[str, Any]) -> torch.optim.Optimizer:
        """Adam, as language models are trained."""
        return torch.optim.Adam(self.model.parameters(), lr=told["rate"] * ADAM_RATE, betas=(told["momentum"], 0.99))


@functools.cache
def _windows() -> tuple[Tensor, Tensor, int]:
    source = Path(argparse.__file__).read_text(encoding="utf-8")
    known = {character: number for number, character in enumerate(sorted(set(source)))}
    whole = torch.tensor([known[character] for character in source])
    chance = torch.Generator().manual_seed(0)
    begins = torch.randperm((len(whole) - 1) // WINDOW, generator=chance)[:SAMPLES] * WINDOW
    windows = torch.stack([whole[begin : begin + WINDOW + 1] for begin in begins.tolist()])
    return windows[:, :-1], windows[:, 1:], len(known)


class Decoder(nn.Module):
    """A small GPT."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(WINDOW, WIDTH)
        block = {"dim_feedforward": 4 * WIDTH, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, **block) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character at each place."""
        hidden = self.characters(text) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.later, is_causal=True)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def problem_of(told: dict[str, Any]) -> Problem:
    """The problem that the settings name, with the start that their seed gives its network."""
    name, seed = told.get("problem", "digits"), told["seed"]
    return {"pictures": Pictures, "text": Text}[name](seed) if name != "digits" else Digits(seed, told["hidden"])

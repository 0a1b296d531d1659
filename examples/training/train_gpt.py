"""Train a small GPT on generated sums such as 12+34=046, which it can only complete by learning to add.

torchrun --nproc-per-node 2 train_gpt.py
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.runtime import join

LETTERS = "0123456789+=\n"
LENGTH = 9


class Gpt(nn.Module):
    """A causal transformer: token and position embeddings, blocks, logits."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(LETTERS), width)
        self.positions = nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, len(LETTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token that follows each position."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.out(self.blocks(hidden, mask=mask, is_causal=True))


def text(count: int, seed: int) -> Tensor:
    """Lines such as 12+34=046, as token ids."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b = generator.randrange(100), generator.randrange(100)
        rows.append([LETTERS.index(letter) for letter in f"{a:02}+{b:02}={a + b:03}\n"])
    return torch.tensor(rows)


def main() -> None:
    """Train and print the accuracy on the answers' characters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Gpt(width=48, layers=2, heads=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lines = text(args.samples, seed=1)
    with join(model, optimizer, TensorDataset(lines[:, :-1], lines[:, 1:]), global_batch=128) as pace:
        for batch in pace.batches(epochs=args.epochs):
            logits = model(batch.inputs)
            pace.step(nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))
        if pace.rank == 0:
            test = text(300, seed=2)
            with torch.no_grad():
                guessed = model(test[:, :-1]).argmax(2)[:, 5:8]
            right = (guessed == test[:, 6:9]).float().mean().item()
            print(f"letters right {right:.3f} after {pace.position.step} steps, shares {pace.shares}")  # noqa: T201


if __name__ == "__main__":
    main()

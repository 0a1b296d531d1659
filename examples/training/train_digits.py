"""Train a small network on handwritten digits (the 1,797 real images of scikit-learn), on unequal machines.

pip install torch scikit-learn paceline             what it needs
python train_digits.py                              one process
torchrun --nproc-per-node 2 train_digits.py         two processes, balanced during training
paceline train train_digits.py --ranks 2            the same, and training survives the failure of either process
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from paceline.runtime import join

HELD_OUT = 300


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """The training set, and held-out images and labels."""
    data = load_digits()
    images = torch.tensor(data.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(data.target)
    return TensorDataset(images[HELD_OUT:], labels[HELD_OUT:]), images[:HELD_OUT], labels[:HELD_OUT]


def main() -> None:
    """Train and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    dataset, images, labels = digits()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with join(model, optimizer, dataset, global_batch=128) as pace:
        for batch in pace.batches(epochs=epochs):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
            pace.step(loss)
        if pace.rank == 0:
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
            print(f"accuracy {accuracy:.3f} after {pace.position.step} steps on {pace.size} ranks")  # noqa: T201


if __name__ == "__main__":
    main()

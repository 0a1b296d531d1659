"""The loop of images_ddp.py on unequal machines: autocast, scaled loss, clipping, schedule, loader with workers.

torchrun --nproc-per-node 2 images_paceline.py
paceline train images_paceline.py --ranks 2         the same, and training survives the failure of either rank
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.runtime import Settings, join

EPOCHS, BATCH = 2, 32


def network() -> nn.Module:
    """Two convolutions and a classifier; GroupNorm does not depend on how batches are split."""
    early = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*early, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    """Train, and print every loss."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(128, 3, 16, 16), torch.randint(10, (128,)))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=EPOCHS * len(dataset) // BATCH)
    scaler = torch.amp.GradScaler("cpu")

    def loaders(sampler):
        return DataLoader(dataset, batch_sampler=sampler, num_workers=1)

    with join(model, optimizer, loaders, global_batch=BATCH, settings=Settings(also=(scaler, scheduler))) as pace:
        for inputs, targets in pace.batches(epochs=EPOCHS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            pace.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if pace.update(scaler=scaler):
                scheduler.step()
            print(f"loss {loss.item()!r}")  # noqa: T201


if __name__ == "__main__":
    main()

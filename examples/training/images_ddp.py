"""A stock loop under DistributedDataParallel: autocast, scaled loss, clipping, schedule, loader with workers.

torchrun --nproc-per-node 2 images_ddp.py           `images_paceline.py` is the same script on unequal machines
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH = 2, 32


def network() -> nn.Module:
    """Two convolutions and a classifier; GroupNorm does not depend on how batches are split."""
    early = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*early, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    """Train, and print every loss."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(128, 3, 16, 16), torch.randint(10, (128,)))
    model = network()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=EPOCHS * len(dataset) // BATCH)
    scaler = torch.amp.GradScaler("cpu")
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler, num_workers=1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            print(f"loss {loss.item()!r}")  # noqa: T201


if __name__ == "__main__":
    main()

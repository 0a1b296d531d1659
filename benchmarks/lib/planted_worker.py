"""A PyTorch rank with a real fault planted in it: slow files, bookkeeping in every step, or one busy server."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.bench.frameworks.harness import Job, main
from paceline.bench.frameworks.pytorch.worker import TorchSession
from paceline.bench.frameworks.pytorch.worker_emulated import EmulatedSession

SIDE = 768
"""Side of the stored images, which are shrunk to the network's input while the step waits."""


class SlowFiles(TorchSession):
    """Every step reads, unpacks and shrinks its images itself, one after the other."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        folder = Path(tempfile.mkdtemp(prefix="paceline-planted-", dir=Path(os.environ["PACELINE_EVENTS"]).parent))
        generator = torch.Generator().manual_seed(rank)
        self.files = []
        for index in range(job["batch"]):
            image = torch.randint(256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
            path = folder / f"{index}.bin"
            path.write_bytes(zlib.compress(image.numpy().tobytes(), 1))
            self.files.append(path)

    def step(self, upto: str) -> None:
        """A step that begins with the files if it is to be a full one."""
        if upto == "full":
            self._read_files()
        super().step(upto)

    def _read_files(self) -> None:
        size = self.batch.shape[-1]
        for index, path in enumerate(self.files):
            pixels = bytearray(zlib.decompress(path.read_bytes()))
            image = torch.frombuffer(pixels, dtype=torch.uint8).view(1, 3, SIDE, SIDE).float() / 255
            self.batch[index] = torch.nn.functional.interpolate(image, size=size, mode="bilinear", antialias=True)[0]


class Bookkeeping(TorchSession):
    """Every step begins by looking at every weight in Python, as forgotten debugging aids do."""

    def step(self, upto: str) -> None:
        """A step after the inspections: numbers at all, their norm, their range, how many are small."""
        weights = [value for p in self.net.parameters() for value in p.detach().flatten().tolist()]
        if any(value != value for value in weights):
            raise ValueError("a weight is not a number")
        self.norm = sum(value * value for value in weights) ** 0.5
        self.range = min(weights), max(weights)
        self.small = sum(1 for value in weights if abs(value) < 1e-6)
        super().step(upto)


class OneServer(EmulatedSession):
    """Gradients go to the host of rank 0, which averages them and sends the result to everyone."""

    def _average_gradients(self) -> None:
        parameters = [p for p in reversed(list(self.net.parameters())) if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in parameters])
        if self.rank == 0:
            self._serve(flat)
        else:
            dist.send(flat, 0)
            dist.recv(flat, 0)
        offset = 0
        for p in parameters:
            p.grad = flat[offset : offset + p.numel()].view_as(p).clone()
            offset += p.numel()

    def _serve(self, flat: torch.Tensor) -> None:
        ranks = self.job["ranks"]
        received = [torch.empty_like(flat) for _ in range(1, ranks)]
        for request in [dist.irecv(tensor, source) for source, tensor in enumerate(received, start=1)]:
            request.wait()
        flat += torch.stack(received).sum(0)
        flat /= ranks
        for request in [dist.isend(flat, target) for target in range(1, ranks)]:
            request.wait()


def make_session(job: Job, rank: int) -> Any:
    """The session with the fault that the environment names."""
    return {"files": SlowFiles, "bookkeeping": Bookkeeping, "server": OneServer}[os.environ["PACELINE_PLANT"]](
        job, rank
    )


if __name__ == "__main__":
    main(make_session)

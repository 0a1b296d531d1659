"""The measured process for Paceline's own runtime: a training loop, run one step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import TensorDataset

from paceline.bench.frameworks.harness import Job, Session, main
from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.runtime.data.batches import Batch
from paceline.runtime.emulate import emulate, emulated_device
from paceline.runtime.pace import join
from paceline.runtime.settings import Settings

__all__ = ["PacelineSession"]

ENDLESS = 10**9
POOL = 2
"""Size of the synthetic dataset, in global batches."""


class PacelineSession(Session):
    """SGD with momentum through the runtime, which chooses the shares of the batch."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.versions = {"torch": torch.__version__, "gloo": "bundled"}
        self.labels: list[str] = []
        torch.set_num_threads(job["threads"])
        torch.manual_seed(job["seed"])
        self.net = TorchNetwork(job["network"])
        _emulate(self.net, job, rank)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        batch = job["batch"] * job["ranks"]
        settings = Settings(bucket=job["strategy"]["bucket"] or None)
        self.pace = join(self.net, optimizer, _samples(job, POOL * batch), global_batch=batch, settings=settings)
        self.pace.__enter__()
        self.batches: Iterator[Batch] = self.pace.batches(steps=ENDLESS, epochs=ENDLESS)
        self.current = next(self.batches)
        self.loss = torch.zeros(())

    def step(self, upto: str) -> None:
        """Run one step; parts of a step compute on the present batch without exchange."""
        loss = self._loss()
        if upto == "forward":
            return
        if upto == "compute":
            loss.backward()
            self.net.zero_grad(set_to_none=True)
            return
        self.pace.step(loss)
        self.loss = loss.detach()
        self.current = next(self.batches)

    def _loss(self) -> torch.Tensor:
        logits = self.net(self.current.inputs)
        return F.cross_entropy(logits.flatten(0, -2), self.current.targets.flatten())

    def facts(self) -> dict[str, Any]:
        """Shares, and results of the exchange."""
        return {**self.pace.facts(), "loss": float(self.loss)}

    def close(self) -> None:
        """Leave the group."""
        self.pace.__exit__(None, None, None)


def _samples(job: Job, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(job["seed"])
    given, classes = job["network"]["input"], job["network"]["classes"]
    if given["kind"] == "image":
        shape = (count, given["channels"], given["height"], given["width"])
        return TensorDataset(
            torch.randn(shape, generator=generator), torch.randint(classes, (count,), generator=generator)
        )
    rows = job["network"]["layers"][-1]["shape"][:-1]
    tokens = torch.randint(given["vocabulary"], (count, given["length"]), generator=generator)
    return TensorDataset(tokens, torch.randint(classes, (count, *rows), generator=generator))


def _emulate(net: TorchNetwork, job: Job, rank: int) -> None:
    """Emulate the device of this rank, if the job has emulated devices."""
    emulation = job["devices"][rank].get("emulation")
    device = emulated_device(emulation, job["batch"], seed=rank) if emulation else None
    if device is not None:
        emulate(net, device)


if __name__ == "__main__":
    main(PacelineSession)

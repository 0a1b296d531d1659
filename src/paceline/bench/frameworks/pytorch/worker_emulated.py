"""A rank with an emulated device: layers are timed waits, gradients are real and exchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.bench.frameworks.graph import layer_keys
from paceline.bench.frameworks.harness import Job
from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.bench.frameworks.pytorch.worker import TorchSession
from paceline.bench.virtual.clock import DeviceClock, HostLag, real_time

__all__ = ["EmulatedSession"]


class EmulatedSession(TorchSession):
    """The session of an emulated device: compute is time on a device clock."""

    def __init__(self, job: Job, rank: int) -> None:
        self.emulation: dict[str, Any] = job["emulation"][rank]
        self._fit_memory()
        self.clock = DeviceClock(self.emulation, dilation=job["dilation"], seed=job["seed"] * 1009 + rank)
        self.real_time = real_time()
        super().__init__(job, rank)
        self.labels.append("emulated device")
        if not self.real_time:
            self.labels.append("emulated without real-time priority")
        self.keeping_up = HostLag(self.clock)

    def _fit_memory(self) -> None:
        needed, limit = self.emulation["needed_bytes"], self.emulation["memory_bytes"]
        if limit is not None and needed > limit:
            raise MemoryError(f"out of memory: training needs {needed} bytes, the emulated device has {limit:.0f}")

    def build(self, network: dict[str, Any]) -> TorchNetwork:
        """The network with real tensors, and with timed waits in place of kernels."""
        return EmulatedGraph(network, self.emulation["layers"], clock=self.clock, value=float(self.rank + 1))

    def _shard(self, net: TorchNetwork) -> nn.Module:
        for part in net.parts.values():
            part.sharded = True
        return super()._shard(net)

    def step(self, upto: str) -> None:
        """Run one step by the clock of the emulated device."""
        self.clock.begin_step()
        super().step(upto)

    def begin_timing(self) -> None:
        """Start to record whether the machine keeps up, after warm-up."""
        self.keeping_up = HostLag(self.clock)

    def update(self) -> None:
        """The update takes time on the device clock and changes no weight."""
        self.clock.end_compute()
        self.clock.run(self.emulation["update"])

    def _forward(self) -> Tensor:
        output: Tensor = self.model(self.batch)
        return output

    def facts(self) -> dict[str, Any]:
        """Facts of the session, and whether the machine kept up."""
        return {**super().facts(), "keeping_up": self.keeping_up.report(), "real_time": self.real_time}


class EmulatedGraph(TorchNetwork):
    """A network's layers in order of execution, one after the other on the device."""

    def __init__(self, network: dict[str, Any], times: list[list[float]], *, clock: DeviceClock, value: float) -> None:
        nn.Module.__init__(self)
        self.order = [(layer["name"], layer["inputs"]) for layer in network["layers"]]
        self.parts = nn.ModuleDict()
        self._keys = layer_keys(network)
        for layer, (forward, backward) in zip(network["layers"], times):
            self.parts[self._keys[layer["name"]]] = EmulatedLayer(layer, (forward, backward), clock, value)
        self.anchor = torch.zeros((), requires_grad=True)

    def forward(self, batch: Tensor) -> Tensor:
        """A number that depends on every layer."""
        carried = self.anchor * 1.0
        for part in self.parts.values():
            carried = part(carried)
        return carried


class EmulatedLayer(nn.Module):
    """One layer: its tensors and its emulated time."""

    def __init__(self, layer: dict[str, Any], times: tuple[float, float], clock: DeviceClock, value: float) -> None:
        super().__init__()
        for tensor in layer["tensors"]:
            name = tensor["name"][len(layer["name"]) + 1 :]
            self.register_parameter(name, nn.Parameter(torch.zeros(tensor["shape"])))
        self.times, self.clock, self.value = times, clock, value
        self.sharded = False

    def compute(self, direction: int) -> None:
        """Occupy the device for forward (0) or backward (1), after the wait for shards, which is not lateness."""
        if self.sharded:
            self.clock.waited_for_data()
        self.clock.run(self.times[direction])

    def forward(self, carried: Tensor) -> Tensor:
        """A layer as a timed wait in forward and backward; its gradients are ready after the backward wait."""
        output: Tensor = _Wait.apply(carried, self, *self.parameters())
        return output


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carried: Tensor, layer: EmulatedLayer, *tensors: Tensor) -> Tensor:
        ctx.layer, ctx.shapes, ctx.dtypes = layer, [t.shape for t in tensors], [t.dtype for t in tensors]
        layer.compute(0)
        return carried.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        layer: EmulatedLayer = ctx.layer
        layer.compute(1)
        value = layer.value
        made = [torch.full((), value, dtype=dtype).expand(shape) for shape, dtype in zip(ctx.shapes, ctx.dtypes)]
        return (gradients[0], None, *made)

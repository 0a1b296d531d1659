"""The measured PyTorch process: one rank, plain for one device, DDP or FSDP2 for more."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.bench.frameworks.harness import Job, Session, main
from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.bench.frameworks.pytorch.worker_arrays import batches_from_files, copy_arrays, loss_of_logits, revealed
from paceline.bench.frameworks.pytorch.worker_host import host_rates, thread_gain
from paceline.bench.frameworks.pytorch.worker_trace import ExchangeTrace
from paceline.cost.buckets import bucket_members, fill_buckets

__all__ = ["FsdpSession", "TorchSession"]

POOL = 4
"""Number of host batches that the copied input alternates between, to defeat caches."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchSession(Session):
    """Eager PyTorch as in its documentation: SGD with momentum, gradients averaged by DDP."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.labels: list[str] = []
        self.device = _device(job)
        torch.set_num_threads(job["threads"])
        torch.manual_seed(job["seed"])
        network = job["network"]
        precision = job["strategy"]["precision"]
        if precision in ("float32", "tf32"):  # else what PyTorch does by default
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.mixed = precision == "amp"
        dtype = self.dtype = DTYPES.get(precision, torch.float32)
        self.net = self.build(network).to(self.device, dtype)
        self.overlap = job["strategy"]["overlap"] is not False
        self.exchanges = job["ranks"] > 1 and job["strategy"]["aggregation"] != "none"
        self.model: nn.Module = self._distribute(self.net) if self.exchanges else self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.pool = [_batch(job, rank * POOL + index, dtype) for index in range(POOL)]
        self.batch, self.targets = (tensor.to(self.device, copy=True) for tensor in self.pool[0])
        self.turn = 0
        self.reader: Iterator[list[Tensor]] | None = None
        self.versions = {"torch": torch.__version__, "gloo": "bundled"}
        self.loss = torch.zeros(())

    def _distribute(self, net: TorchNetwork) -> nn.Module:
        strategy = self.job["strategy"]
        backend = strategy["transport"] or ("nccl" if self.device.type == "cuda" else "gloo")
        dist.init_process_group(backend, timeout=timedelta(seconds=self.job["timeout"]))
        if not self.overlap:
            return net
        if self.job["mode"] == "fsdp2":
            return self._shard(net)
        options: dict[str, Any] = {}
        if strategy["bucket"] is not None:
            options["bucket_cap_mb"] = max(strategy["bucket"] / 2**20, 1e-6)
        ids = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(net, device_ids=ids, **options)
        if strategy["compression"] == "float16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            wrapped.register_comm_hook(None, fp16_compress_hook)
        return wrapped

    def _shard(self, net: TorchNetwork) -> nn.Module:
        """Shard with FSDP2: each layer with parameters is a unit; tied layers belong to the root."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.job["ranks"],))
        shared = net.shared_parts(self.job["network"])
        for name, part in net.parts.items():
            if name not in shared and any(True for _ in part.parameters()):
                fully_shard(part, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return net

    def build(self, network: dict[str, Any]) -> TorchNetwork:
        """The network as modules of this framework."""
        return TorchNetwork(network, dropout=not self.job.get("proof"))

    def update(self) -> None:
        """Run the update of the optimizer."""
        self.optimizer.step()

    def step(self, upto: str) -> None:
        """Run one step up to and including a part."""
        if upto in ("copied", "full"):
            self._copy_batch(from_files=upto == "full")
        exchange = upto not in ("forward", "compute")
        with self._quiet(exchange):
            loss = self._forward()
            if upto == "forward":
                return
            self._backward(loss, exchange)
        if upto not in ("compute", "exchange"):
            self.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()

    def _forward(self) -> Tensor:
        with torch.autocast(self.device.type, enabled=self.mixed):
            logits = self.model(self.batch)
        return loss_of_logits(logits, self.targets)

    def _backward(self, loss: Tensor, exchange: bool) -> None:
        loss.backward()
        if exchange and not self.overlap and self.exchanges:
            self._average_gradients()

    def _quiet(self, exchange: bool) -> contextlib.AbstractContextManager[None]:
        """A context without gradient exchange, unless the part includes it."""
        if exchange or not isinstance(self.model, DistributedDataParallel):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self.model.no_sync()
        return context

    def _average_gradients(self) -> None:
        """Exchange gradients after the backward pass in buckets of the requested size, without overlap."""
        gradients = [p.grad for p in reversed(list(self.net.parameters())) if p.grad is not None]
        limit = self.job["strategy"]["bucket"]
        limit = 25 * 2**20 if limit is None else limit
        for bucket in _buckets(gradients, limit):
            flat = torch.cat([gradient.flatten() for gradient in bucket]) if len(bucket) > 1 else bucket[0].flatten()
            dist.all_reduce(flat)
            flat /= self.job["ranks"]
            offset = 0
            for gradient in bucket:
                gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
                offset += gradient.numel()

    def _copy_batch(self, *, from_files: bool = False) -> None:
        source = next(self._batches_from_files()) if from_files else self.pool[self.turn % POOL]
        self.turn += 1
        self.batch.copy_(source[0])
        self.targets.copy_(source[1])

    def _batches_from_files(self) -> Iterator[list[Tensor]]:
        if self.reader is None:
            self.reader = batches_from_files(self.job, self.rank)
        return self.reader

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mark(self) -> dict[str, float]:
        """Native timers: the host clock around each part, with device synchronization before each reading."""
        clock = [self._now()]
        if self.job["input"] != "resident":
            self._copy_batch()
        clock.append(self._now())
        loss = self._forward()
        clock.append(self._now())
        self._backward(loss, exchange=True)
        clock.append(self._now())
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        clock.append(self._now())
        names = ("h2d", "forward", "backward_and_aggregate", "update")
        marks = {name: end - begin for name, begin, end in zip(names, clock, clock[1:])}
        return {**marks, **self._ddp_timers()}

    def _now(self) -> float:
        self.sync()
        return time.perf_counter()

    def _ddp_timers(self) -> dict[str, float]:
        """DDP's own logger, which times its reducer: seconds of communication, and how much of it was hidden."""
        if not isinstance(self.model, DistributedDataParallel):
            return {}
        data = self.model._get_ddp_logging_data()
        names = {
            "ddp_backward_compute": "backward_compute_time",
            "ddp_communication": "backward_comm_time",
            "ddp_overlap": "backward_compute_comm_overlap_time",
        }
        return {name: data[key] / 1e9 for name, key in names.items() if data.get(key)}

    def trace(self, step: int) -> list[dict[str, Any]]:
        """Spans of the forward pass of each layer, of each gradient until it is ready, and of each exchange."""
        spans: list[dict[str, Any]] = []
        with ExchangeTrace() as exchanges:
            handles = self._hooks(spans, step)
            exchanges.begin()
            origin = self._now()
            try:
                self.step("resident")
                self.sync()
            finally:
                for handle in handles:
                    handle.remove()
        own = [{**span, "start_s": span["start_s"] - origin} for span in spans]
        return own + exchanges.spans(step, self.dtype.itemsize)

    def _hooks(self, spans: list[dict[str, Any]], step: int) -> list[Any]:
        began: dict[str, float] = {}
        last = [0.0]
        handles = []

        def add(phase: str, name: str, start: float, size: int) -> None:
            now = self._now()
            seconds = now - start
            entry = {"step": step, "phase": phase, "name": name, "start_s": start, "seconds": seconds}
            spans.append({**entry, "size_bytes": size})
            last[0] = now

        for (name, _), part in zip(self.net.order, self.net.parts.values()):
            handles.append(part.register_forward_pre_hook(lambda m, a, n=name: began.__setitem__(n, self._now())))
            handles.append(part.register_forward_hook(lambda m, a, o, n=name: add("forward", n, began[n], _size(o))))
        for name, tensor in self.net.named_tensors().items():
            ready = tensor.register_post_accumulate_grad_hook(
                lambda p, n=name: add("backward", n, last[0], p.numel() * p.element_size())
            )
            handles.append(ready)
        return handles

    def feed(self, inputs: Any, targets: Any) -> None:
        """Make this the resident batch."""
        floating = inputs.dtype.kind == "f"
        self.batch = torch.from_numpy(inputs).to(self.device, self.dtype if floating else torch.int64)
        self.targets = torch.from_numpy(targets).to(self.device)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        copy_arrays(tensors, self.net.named_tensors())

    def tensors(self) -> dict[str, Any]:
        """All trainable tensors."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.net.named_tensors().items()}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        return revealed(self.net, self.net.named_tensors(), self.batch, self.targets)

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        wrapper = type(self.model).__name__ if self.exchanges else "none"
        own = {"loss": float(self.loss), "wrapper": wrapper, "device": str(self.device)}
        return {**own, "host": self._host()} if self.job["phases"] and self.job["ranks"] == 1 else own

    def _host(self) -> dict[str, Any] | None:
        """Rates of the CPU, by which a profile can be scaled to other threads and devices; none for a GPU or an
        emulated device."""
        if self.device.type != "cpu" or self.job["emulation"]:
            return None
        gain = thread_gain(lambda: self.step("resident")) if torch.get_num_threads() > 1 else None
        return {**host_rates(), "thread_gain": gain}

    def close(self) -> None:
        """Exit after a barrier: an early exit of a rank would cause errors on the others."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


class FsdpSession(TorchSession):
    """FSDP2 shards parameters, gradients and optimiser state; an unsharded twin computes passes without exchange."""

    def _distribute(self, net: TorchNetwork) -> nn.Module:
        self.twin = self.build(self.job["network"]).to(self.device, self.dtype)
        return super()._distribute(net)

    def step(self, upto: str) -> None:
        """Partial passes run on the twin, complete steps on the sharded network."""
        if self.job["ranks"] > 1 and upto in ("forward", "compute"):
            loss = loss_of_logits(self.twin(self.batch), self.targets)
            if upto == "compute":
                loss.backward()
                self.twin.zero_grad(set_to_none=True)
            return
        super().step(upto)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set whole tensors; each rank keeps its shard."""
        if self.job["ranks"] == 1:
            super().load(tensors)
            return
        with torch.no_grad():
            for name, tensor in self.net.named_tensors().items():
                whole = torch.from_numpy(tensors[name]).to(tensor.dtype)
                shards = whole.chunk(self.job["ranks"])
                local = tensor.to_local()
                if local.numel():
                    local.copy_(shards[dist.get_rank()])
        copy_arrays(tensors, self.twin.named_tensors())

    def tensors(self) -> dict[str, Any]:
        """Whole tensors, gathered from the shards."""
        tensors = self.net.named_tensors().items()
        whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in tensors}
        return {name: tensor.detach().cpu().numpy() for name, tensor in whole.items()}

    def trace(self, step: int) -> list[dict[str, Any]]:
        """No spans, because hooks on sharded tensors would include the all-gather."""
        return []


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _buckets(gradients: list[Tensor], limit: float) -> list[list[Tensor]]:
    last = fill_buckets([_size(gradient) for gradient in gradients], [limit])
    return [[gradients[index] for index in bucket] for bucket in bucket_members(last)]


def _device(job: Job) -> torch.device:
    if job["accelerator"] == "cuda":
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")


def _batch(job: Job, index: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A synthetic batch that depends on the seed and the index alone."""
    generator = torch.Generator().manual_seed(job["seed"] * 1_000_003 + index)
    given, size, classes = job["network"]["input"], job["batch"], job["network"]["classes"]
    if given["kind"] == "image":
        shape = (size, given["channels"], given["height"], given["width"])
        return torch.randn(shape, generator=generator).to(dtype), torch.randint(classes, (size,), generator=generator)
    tokens = torch.randint(given["vocabulary"], (size, given["length"]), generator=generator)
    rows = job["network"]["layers"][-1]["shape"][:-1]
    return tokens, torch.randint(classes, (size, *rows), generator=generator)


def make_session(job: Job, rank: int) -> TorchSession:
    """The session for a real device, a sharded network, or an emulated device."""
    if job["emulation"]:
        from paceline.bench.frameworks.pytorch.worker_emulated import EmulatedSession

        return EmulatedSession(job, rank)
    return FsdpSession(job, rank) if job["mode"] == "fsdp2" else TorchSession(job, rank)


if __name__ == "__main__":
    main(make_session)

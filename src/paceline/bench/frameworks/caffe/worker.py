"""The measured Caffe process: one rank by its solver; more by Caffe-MPI's scheme, re-created on pycaffe.

The scheme: as soon as a layer's backward is done its gradients are all-reduced by MPI while the layers below still
compute. A thread carries the all-reduces; pycaffe computes in C++ meanwhile. Python 3.9 syntax only.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from paceline import variables

os.environ["GLOG_minloglevel"] = "2"  # noqa: SIM112

import caffe
import numpy as np

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.caffe.prototxt import (
    parameter_blobs,
    reader_prototxt,
    solver_prototxt,
    train_prototxt,
)
from paceline.bench.frameworks.datasets import FileSet, share, write_list
from paceline.bench.frameworks.graph import layer_keys
from paceline.bench.frameworks.harness import main

__all__ = ["CaffeSession"]

RECREATION = "re-creation: Caffe-MPI's scheme driven on pycaffe's layer-wise backward; not the original program"


class CaffeSession(ArraySession):
    """A net and its SGD solver."""

    def setup(self) -> None:
        """Write the prototxt, load it, join MPI if there are more ranks."""
        caffe.set_mode_cpu()
        self.versions = {"caffe": caffe.__version__}
        self.solver = self._solver(os.path.dirname(os.environ[variables.EVENTS]))
        self.net = self.solver.net
        self.blobs = parameter_blobs(self.job["network"])
        self.exchange = None
        if self.job["framework"] == "caffe-mpi":
            self.labels = [RECREATION]
        if self.ranks > 1:
            self.exchange = LayerwiseExchange(self.net, self.ranks, {layer for layer, _ in self.blobs.values()})

    def _solver(self, folder: str) -> Any:
        net_path = os.path.join(folder, f"net-{self.rank}.prototxt")
        with open(net_path, "w", encoding="utf-8") as file:
            file.write(train_prototxt(self.job["network"], batch=self.job["batch"], training=self.training))
        path = os.path.join(folder, f"solver-{self.rank}.prototxt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(solver_prototxt(net_path, rate=RATE, momentum=MOMENTUM, seed=self.job["seed"] + 1))
        return caffe.get_solver(path)

    def place(self, inputs: Any, targets: Any) -> Any:
        """Caffe computes on its input blobs: a batch is copied into them."""
        self.net.blobs["input"].data[...] = inputs
        self.net.blobs["label"].data[...] = targets
        return None

    def read(self) -> Iterator[Any]:
        """Caffe's ImageData layer for a folder of images; it has no reader of CIFAR's records: a thread reads those."""
        if self.job["data"]["kind"] == "cifar":
            yield from super().read()
            return
        files = FileSet(self.job)
        folder = os.path.dirname(os.environ[variables.EVENTS])
        listed, path = (os.path.join(folder, f"files-{self.rank}.{kind}") for kind in ("txt", "prototxt"))
        write_list(listed, files, share(len(files), self.job, self.rank))
        with open(path, "w", encoding="utf-8") as file:
            file.write(reader_prototxt(listed, batch=self.job["batch"], colour=files.shape[0] == 3))
        reader = caffe.Net(path, caffe.TRAIN)
        while True:
            reader.forward()
            yield self.place(reader.blobs["input"].data, reader.blobs["label"].data)

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        if part == "update" and self.exchange is None:
            self.solver.step(1)
            return
        self.net.forward()
        if part == "forward":
            return
        self.net.clear_param_diffs()
        if self.exchange is None or part == "compute":
            self.net.backward()
        else:
            self.exchange.backward()
        if part == "update":
            self.solver.apply_update()

    def _blob(self, tensor: str) -> Any:
        layer, index = self.blobs[tensor]
        return self.net.params[layer][index]

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        for name, array in tensors.items():
            self._blob(name).data[...] = array

    def tensors(self) -> dict[str, Any]:
        """All trainable tensors."""
        return {name: self._blob(name).data.copy() for name in self.blobs}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        self.run("compute", None)
        last = layer_keys(self.job["network"])[self.job["network"]["layers"][-1]["name"]]
        logits = self.net.blobs[last].data.copy()
        loss = float(self.net.blobs["loss"].data)
        return logits, loss, {name: self._blob(name).diff.copy() for name in self.blobs}

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        wrapper = "none" if self.exchange is None else "layer-wise MPI all-reduce"
        return {"loss": float(self.net.blobs["loss"].data), "wrapper": wrapper}

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.exchange is not None:
            self.exchange.close()


class LayerwiseExchange:
    """Backward layer by layer, the gradients of finished layers being averaged by a thread meanwhile."""

    def __init__(self, net: Any, ranks: int, trained: set[str]) -> None:
        from mpi4py import MPI

        self._net, self._ranks, self._world = net, ranks, MPI.COMM_WORLD
        self._in_place, self._finalize = MPI.IN_PLACE, MPI.Finalize
        # batch normalisation's running statistics are blobs of a layer too, but no gradients
        self._stretches = _stretches(list(net._layer_names), trained)
        self._work: Any = queue.Queue()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def backward(self) -> None:
        """The whole backward pass; returns when all gradients are averaged."""
        for start, end in self._stretches:
            self._net.backward(start=start, end=end)
            self._work.put(end)
        self._work.join()

    def _carry(self) -> None:
        while True:
            layer = self._work.get()
            if layer is None:
                self._work.task_done()
                return
            for blob in self._net.params.get(layer, ()):
                self._world.Allreduce(self._in_place, blob.diff)
                np.divide(blob.diff, self._ranks, out=blob.diff)
            self._work.task_done()

    def close(self) -> None:
        """Stop the thread."""
        self._work.put(None)
        self._thread.join()
        self._finalize()


def _stretches(names: list[str], trained: set[str]) -> list[tuple[str, str]]:
    """Runs of layers, last to first, each ending with a layer that has parameters."""
    found = []
    start = None
    for name in reversed(names):
        start = start or name
        if name in trained:
            found.append((start, name))
            start = None
    return found


if __name__ == "__main__":
    main(CaffeSession)

"""Sessions with NumPy input, and their part of the equality proof.

Runs inside every framework's own environment: standard library and NumPy only, Python 3.9 syntax only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from paceline.bench.frameworks.graph import Plain, tensor_shapes
from paceline.bench.frameworks.harness import Job, Session

__all__ = ["MOMENTUM", "POOL", "RATE", "ArraySession", "initial_tensors", "prove", "shard", "synthetic_batch"]

POOL = 4
"""Number of host batches that the copied input alternates between, to defeat caches."""
RATE, MOMENTUM = 0.01, 0.9
"""Every framework trains by stochastic gradient descent with this rate and momentum."""
Tensors = dict[str, Any]


class ArraySession(Session):
    """Input handling that all frameworks but PyTorch share: resident, copied from host memory, read from files.

    A framework provides `place` (host arrays to its own tensors) and `run` (one step up to a part, on a batch); and
    for the equality proof, in Paceline's names and layout: `load` and `tensors` (all trainable tensors), `reveal`
    (logits, loss and gradients of the resident batch, without exchange).
    """

    parts: ClassVar = {"forward": "forward", "compute": "compute", "exchange": "exchange"}

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.ranks = job, rank, job["ranks"]
        self.labels = []
        self.training = not job.get("proof")
        self.setup()
        self.load(initial_tensors(job["network"], job["seed"]))
        self._pool = [self.arrange(*synthetic_batch(job, rank * POOL + index)) for index in range(POOL)]
        self.batch = self.place(*self._pool[0])
        self._turn = 0
        self._reader: Iterator[Any] | None = None

    def setup(self) -> None:
        """Build the network and join the group of ranks."""
        raise NotImplementedError

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Host arrays in the framework's layout."""
        return inputs, targets

    def place(self, inputs: Any, targets: Any) -> Any:
        """The framework's own tensors of a host batch."""
        raise NotImplementedError

    def run(self, part: str, batch: Any) -> None:
        """One step on a batch, up to `forward`, `compute`, `exchange` or `update`."""
        raise NotImplementedError

    def step(self, upto: str) -> None:
        """Run one step up to and including the part of a pass, on the input of that pass."""
        batch = self.batch
        if upto == "copied":
            self._turn += 1
            batch = self.place(*self._pool[self._turn % POOL])
        elif upto == "full":
            batch = self._next_from_files()
        self.run(self.parts.get(upto, "update"), batch)

    def _next_from_files(self) -> Any:
        if self._reader is None:
            self._reader = self.read()
        return next(self._reader)

    def read(self) -> Iterator[Any]:
        """Batches of the job's data set, by the framework's own loader; by default by a prefetching thread."""
        from paceline.bench.frameworks.datasets import read_ahead

        for inputs, targets in read_ahead(self.job, self.rank):
            yield self.place(*self.arrange(inputs, targets))

    def load(self, tensors: Tensors) -> None:
        """Set all trainable tensors."""
        raise NotImplementedError

    def tensors(self) -> Tensors:
        """All trainable tensors."""
        raise NotImplementedError

    def reveal(self) -> tuple[Any, float, Tensors]:
        """Logits, loss and gradients of the resident batch."""
        raise NotImplementedError

    def feed(self, inputs: Any, targets: Any) -> None:
        """Make this the resident batch."""
        self.batch = self.place(*self.arrange(inputs, targets))


def initial_tensors(network: Plain, seed: int) -> Tensors:
    """The same weights for every framework: scaled normal matrices, unit scales, zero shifts."""
    generator = np.random.RandomState(seed % 2**32)
    tensors = {}
    for name, shape in tensor_shapes(network).items():
        if len(shape) > 1:
            spread = (2.0 / np.prod(shape[1:])) ** 0.5
            tensors[name] = (spread * generator.standard_normal(shape)).astype(np.float32)
        else:
            tensors[name] = np.full(shape, 1.0 if name.endswith(".weight") else 0.0, np.float32)
    return tensors


def synthetic_batch(job: Job, index: int) -> tuple[Any, Any]:
    """Inputs and targets that depend on the seed and the index alone, channels first."""
    network, size = job["network"], job["batch"]
    generator = np.random.RandomState((job["seed"] * 1_000_003 + index) % 2**32)
    given = network["input"]
    rows = network["layers"][-1]["shape"][:-1]
    targets = generator.randint(network["classes"], size=(size, *rows)).astype(np.int64)
    if given["kind"] == "tokens":
        return generator.randint(given["vocabulary"], size=(size, given["length"])).astype(np.int64), targets
    shape = (size, given["channels"], given["height"], given["width"])
    return generator.standard_normal(shape).astype(np.float32), targets


def shard(array: Any, rank: int, ranks: int) -> Any:
    """A rank's contiguous share of a global batch."""
    size = len(array) // ranks
    return array[rank * size : (rank + 1) * size]


def prove(job: Job, rank: int, session: Any) -> None:
    """Write logits, loss and gradients of one batch, and the weights after the requested number of steps."""
    given = np.load(job["proof"]["given"])
    weights = {name[2:]: given[name] for name in given.files if name.startswith("w/")}
    inputs, targets = given["inputs"], given["targets"]
    session.load(weights)
    computed: dict[str, Any] = {}
    if job["ranks"] == 1:
        session.feed(inputs[0], targets[0])
        logits, loss, gradients = session.reveal()
        computed.update({"logits": logits, "loss": np.asarray(loss)})
        computed.update({"g/" + name: value for name, value in gradients.items()})
        session.load(weights)
    for batch, labels in zip(inputs, targets):
        session.feed(shard(batch, rank, job["ranks"]), shard(labels, rank, job["ranks"]))
        session.step("resident")
    computed.update({"w/" + name: value for name, value in session.tensors().items()})
    np.savez(f"{job['proof']['results']}/rank-{rank}.npz", **computed)

"""The worker's side of the equality proof: computes results from given weights and batches and writes them to a file.

Runs inside every framework's own environment: standard library and NumPy only, Python 3.9 syntax only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.bench.frameworks.arrays import shard
from paceline.bench.frameworks.harness import Job

__all__ = ["prove"]


def prove(job: Job, rank: int, session: Any) -> None:
    """Write logits, loss and gradients of one batch, and the weights after the requested number of steps."""
    given = np.load(job["proof"]["given"])
    weights = {name[2:]: given[name] for name in given.files if name.startswith("w/")}
    inputs, targets = given["inputs"], given["targets"]
    session.load(weights)
    found: dict[str, Any] = {}
    if job["ranks"] == 1:
        session.feed(inputs[0], targets[0])
        logits, loss, gradients = session.reveal()
        found.update({"logits": logits, "loss": np.asarray(loss)})
        found.update({"g/" + name: value for name, value in gradients.items()})
        session.load(weights)
    for batch, labels in zip(inputs, targets):
        session.feed(shard(batch, rank, job["ranks"]), shard(labels, rank, job["ranks"]))
        session.step("resident")
    found.update({"w/" + name: value for name, value in session.tensors().items()})
    np.savez(f"{job['proof']['found']}/rank-{rank}.npz", **found)

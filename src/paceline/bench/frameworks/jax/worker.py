"""The measured JAX process: one rank; more are one mesh of devices over processes, gradients averaged by pmean."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.jax.worker_network import JaxNetwork, cross_entropy

__all__ = ["JaxSession"]


class JaxSession(ArraySession):
    """A pure step compiled by XLA; with more ranks inside shard_map, so that each rank normalises its own batch."""

    def setup(self) -> None:
        """Join the other processes, build the mesh, compile the passes."""
        if self.ranks > 1:
            jax.config.update("jax_cpu_collectives_implementation", self.job["strategy"]["transport"] or "gloo")
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            jax.distributed.initialize(address, self.ranks, self.rank)
        self.versions = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
        self.mesh = jax.make_mesh((self.ranks,), ("ranks",))
        self.whole, self.split = NamedSharding(self.mesh, Spec()), NamedSharding(self.mesh, Spec("ranks"))
        self.net = self.build()
        self.names = list(tensor_shapes(self.job["network"]))
        self.key = jax.random.key(self.job["seed"])
        self.passes = {name: self._compiled(name) for name in ("forward", "compute", "exchange", "update")}
        self.result: Any = None
        self.weights: dict[str, Any] = {}
        self.momenta: dict[str, Any] = {}

    def build(self) -> Any:
        """The network as a function of its parameters."""
        return JaxNetwork(self.job["network"], training=self.training)

    def _compiled(self, part: str) -> Any:
        if part in ("forward", "compute"):
            return jax.jit(self._loss if part == "forward" else jax.value_and_grad(self._loss))
        step = self._averaged if part == "exchange" else self._updated
        states = 1 if part == "exchange" else 2
        specs = (*([Spec()] * states), Spec("ranks"), Spec("ranks"), Spec())
        mapped = jax.shard_map(step, mesh=self.mesh, in_specs=specs, out_specs=Spec())
        return jax.jit(mapped, donate_argnums=() if part == "exchange" else (0, 1))

    def _loss(self, weights: Any, inputs: Any, targets: Any, key: Any) -> Any:
        return cross_entropy(self.net(weights, inputs, key), targets)

    def _averaged(self, weights: Any, inputs: Any, targets: Any, key: Any) -> Any:
        local = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, ("ranks",), to="varying"), weights)
        loss, gradients = jax.value_and_grad(self._loss)(local, inputs, targets, key)
        return jax.lax.pmean((loss, gradients), "ranks")

    def _updated(self, weights: Any, momenta: Any, inputs: Any, targets: Any, key: Any) -> Any:
        loss, gradients = self._averaged(weights, inputs, targets, key)
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - RATE * m, weights, momenta), momenta, loss

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Images channels last."""
        if inputs.ndim == 4:
            return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)), targets.astype(np.int32)
        return inputs.astype(np.int32), targets.astype(np.int32)

    def place(self, inputs: Any, targets: Any) -> Any:
        """This rank's share of global arrays."""
        return tuple(jax.make_array_from_process_local_data(self.split, array) for array in (inputs, targets))

    def run(self, part: str, batch: Any) -> None:
        """One compiled pass; partial ones run on this rank's share alone."""
        if part == "update":
            self.weights, self.momenta, self.result = self.passes[part](self.weights, self.momenta, *batch, self.key)
        elif part == "exchange":
            self.result = self.passes[part](self.weights, *batch, self.key)
        else:
            self.result = self.passes[part](_local(self.weights), *map(_local, batch), self.key)

    def sync(self) -> None:
        """Wait for XLA's asynchronous dispatch."""
        jax.block_until_ready(self.result)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set weights on every rank, forget momentum."""
        native = {name: np.asarray(self.net.native(name, array), np.float32) for name, array in tensors.items()}
        self.weights = {name: self._replicated(array) for name, array in native.items()}
        self.momenta = {name: self._replicated(np.zeros_like(array)) for name, array in native.items()}

    def _replicated(self, array: Any) -> Any:
        return jax.make_array_from_callback(array.shape, self.whole, lambda index: array[index])

    def tensors(self) -> dict[str, Any]:
        """Weights in Paceline's layout."""
        return {name: self.net.plain(name, np.asarray(_local(self.weights[name]))) for name in self.names}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        weights, inputs, targets = _local(self.weights), _local(self.batch[0]), _local(self.batch[1])
        logits = jax.jit(self.net)(weights, inputs, self.key)
        loss, gradients = self.passes["compute"](weights, inputs, targets, self.key)
        return np.asarray(logits), float(loss), {n: self.net.plain(n, np.asarray(g)) for n, g in gradients.items()}

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        loss = self.result if not isinstance(self.result, tuple) else self.result[0]
        return {"loss": float(jnp.asarray(_local(loss))), "wrapper": "shard_map" if self.ranks > 1 else "none"}

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.ranks > 1:
            jax.distributed.shutdown()


def _local(tree: Any) -> Any:
    """This process's piece of global arrays, without a copy."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


if __name__ == "__main__":
    main(JaxSession)

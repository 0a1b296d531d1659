"""The measured TensorFlow process with ParameterServerStrategy: rank 0 drives the workers, one for each rank.

Workers and the parameter server are separate processes of this module; they serve the task that their environment
names. A step of rank 0 schedules one training step for each worker and waits for all; the other ranks wait for its
message, so that their step times agree.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from paceline import variables
from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.rendezvous import ControlChannel, join_ranks
from paceline.bench.frameworks.tensorflow.worker import TensorFlowSession
from paceline.bench.frameworks.tensorflow.worker_network import TensorFlowNetwork, mean_cross_entropy

__all__ = ["ChiefSession", "FollowerSession"]

SAME = {"resident": "exchange"}
"""Workers exchange by updating: there is no exchange without an update."""


class ChiefSession(TensorFlowSession):
    """Rank 0: schedules a function on every worker through the coordinator."""

    def setup(self) -> None:
        """Connect to all servers, build variables on the parameter server."""
        tf.config.threading.set_intra_op_parallelism_threads(self.job["threads"])
        self.versions = {"tensorflow": tf.__version__}
        self.labels = [
            "asynchronous: a worker updates the variables without waiting for the others",
            "workers read variables from the server: their way is counted as forward, that of updates as aggregate",
        ]
        self.same = SAME if self.ranks > 1 else {}
        self.waiting = _meet(0, self.ranks)
        cluster = tf.train.ClusterSpec(_cluster())
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.names = list(tensor_shapes(self.job["network"]))
        with self.strategy.scope():
            self.net = TensorFlowNetwork(self.job["network"], training=self.training)
            self.momenta = {name: tf.Variable(tf.zeros_like(self.net.tensors[name])) for name in self.names}
        self.variables = [self.net.tensors[name] for name in self.names]
        self.passes = {name: tf.function(getattr(self, "_" + name)) for name in ("forward", "compute", "update")}
        self.loss = tf.constant(0.0)

    def place(self, inputs: Any, targets: Any) -> Any:
        """A batch for each worker, kept by the function that it runs."""
        return inputs, targets

    def run(self, part: str, batch: Any) -> None:
        """One asynchronous step on each worker, which reads and updates variables on the server."""
        step = self.passes["update" if part == "exchange" else part]
        done = [self.coordinator.schedule(step, args=batch) for _ in range(self.ranks)]
        self.coordinator.join()
        result = done[0].fetch()
        self.loss = result[0] if isinstance(result, tuple) else result
        self.waiting.signal()

    def sync(self) -> None:
        """No effect, because the coordinator has already waited for all workers."""

    def _forward(self, inputs: Any, targets: Any) -> Any:
        return mean_cross_entropy(self.net(inputs), targets)

    def _gradients(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(self.net(inputs), targets)
        return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, self.variables)]

    def _compute(self, inputs: Any, targets: Any) -> Any:
        """Return the gradients as one number: sending them to the chief would count as backward."""
        loss, gradients = self._gradients(inputs, targets)
        return loss, tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    def _update(self, inputs: Any, targets: Any) -> Any:
        loss, gradients = self._gradients(inputs, targets)
        for name, variable, gradient in zip(self.names, self.variables, gradients, strict=True):
            momentum = self.momenta[name]
            momentum.assign(MOMENTUM * momentum + gradient)
            variable.assign_sub(RATE * momentum)
        return loss

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(np.asarray(self.loss)), "wrapper": "ParameterServerStrategy"}

    def close(self) -> None:
        """Close the connections; the followers then end."""
        self.waiting.close()


class FollowerSession(ArraySession):
    """Another rank: its worker computes on the chief's command, and its steps are as long as the chief's."""

    def setup(self) -> None:
        """Connect to the chief."""
        self.same = SAME
        self.versions = {"tensorflow": tf.__version__}
        self.chief = _meet(self.rank, self.ranks)

    def load(self, tensors: dict[str, Any]) -> None:
        """The chief holds the variables."""

    def place(self, inputs: Any, targets: Any) -> Any:
        """The chief sends the batches."""
        return None

    def run(self, part: str, batch: Any) -> None:
        """Wait for the chief's message."""
        self.chief.await_signal()


def _meet(rank: int, ranks: int) -> ControlChannel:
    """The chief and the other ranks, on a separate port from the rendezvous of the launch."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return join_ranks(rank, ranks, address=address, port=port, token=os.environ[variables.TOKEN])


def _cluster() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(os.environ[variables.TENSORFLOW_CLUSTER])
    return found


def make_session(job: Any, rank: int) -> Any:
    """The session of the chief or of a follower."""
    return ChiefSession(job, rank) if rank == 0 else FollowerSession(job, rank)


def serve() -> None:
    """Compute or keep variables for the chief, until the launch ends."""
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    kind, index = os.environ[variables.TENSORFLOW_TASK].split()
    cluster = tf.train.ClusterSpec(_cluster())
    tf.distribute.Server(cluster, job_name=kind, task_index=int(index), protocol="grpc", start=True).join()


if __name__ == "__main__":
    serve() if variables.TENSORFLOW_TASK in os.environ else main(make_session)

"""The measured Horovod process on TensorFlow: gradients averaged by DistributedGradientTape."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.tensorflow.worker import TensorFlowSession
from paceline.bench.frameworks.tensorflow.worker_network import mean_cross_entropy

__all__ = ["HorovodTensorFlowSession"]


class HorovodTensorFlowSession(TensorFlowSession):
    """TensorFlow's custom loop; each rank is its own program."""

    def join(self) -> Any:
        """Horovod in place of a distribution strategy."""
        hvd.init()
        self.versions["horovod"] = "0.28.1"
        return tf.distribute.get_strategy()

    def _averaged(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = mean_cross_entropy(self.net(inputs), targets)
        if self.ranks > 1:
            tape = hvd.DistributedGradientTape(tape)
        return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, self.variables)]

    def _exchange(self, inputs: Any, targets: Any) -> Any:
        loss, gradients = self._averaged(inputs, targets)
        return loss, gradients

    def _update(self, inputs: Any, targets: Any) -> Any:
        loss, gradients = self._averaged(inputs, targets)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss), "wrapper": "DistributedGradientTape", "mpi": bool(hvd.mpi_enabled())}

    def close(self) -> None:
        """Leave the group of ranks."""
        hvd.shutdown()


if __name__ == "__main__":
    main(HorovodTensorFlowSession)

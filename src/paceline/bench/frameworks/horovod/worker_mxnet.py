"""The measured Horovod process on MXNet: gradients averaged by DistributedTrainer."""

from __future__ import annotations

from typing import Any

import horovod.mxnet as hvd

from paceline.bench.frameworks.arrays import MOMENTUM, RATE
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.mxnet.worker import MxnetSession

__all__ = ["HorovodMxnetSession"]


class HorovodMxnetSession(MxnetSession):
    """Gluon with Horovod's trainer in place of a kvstore."""

    def connect(self) -> Any:
        """Horovod in place of a kvstore."""
        hvd.init()
        self.versions["horovod"] = "0.28.1"
        return None

    def trainer_of(self, parameters: Any) -> Any:
        """Averages gradients, then updates in this process."""
        return hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": RATE, "momentum": MOMENTUM})

    def exchange(self, part: str, batch: int) -> None:
        """The trainer's two halves: average, update; its own gradient scale divides by the number of ranks."""
        if part == "update":
            self.trainer.step(batch)
        else:
            self.trainer.allreduce_grads()

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        loss = float(self.loss.mean().asscalar())
        return {"loss": loss, "wrapper": "DistributedTrainer", "mpi": bool(hvd.mpi_enabled())}

    def close(self) -> None:
        """Leave the group of ranks."""
        hvd.shutdown()


if __name__ == "__main__":
    main(HorovodMxnetSession)

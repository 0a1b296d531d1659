"""A TensorFlow server that computes or keeps variables for the chief; ends with the launch."""

from __future__ import annotations

import json
import os

import tensorflow as tf

from paceline import variables

__all__ = ["main"]


def main() -> None:
    """Serve until the launch ends."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    cluster = tf.train.ClusterSpec(json.loads(os.environ[variables.TENSORFLOW_CLUSTER]))
    kind, index = os.environ[variables.TENSORFLOW_TASK].split()
    tf.distribute.Server(cluster, job_name=kind, task_index=int(index), protocol="grpc", start=True).join()


if __name__ == "__main__":
    main()

"""Every framework that can be measured, in one table."""

from __future__ import annotations

from paceline.bench.frameworks.caffe.adapter import Caffe, CaffeMpi
from paceline.bench.frameworks.chainer.adapter import Chainer
from paceline.bench.frameworks.cntk.adapter import Cntk
from paceline.bench.frameworks.deepspeed.adapter import DeepSpeed
from paceline.bench.frameworks.horovod.adapter import Horovod
from paceline.bench.frameworks.jax.adapter import Jax
from paceline.bench.frameworks.keras.adapter import Keras
from paceline.bench.frameworks.mxnet.adapter import Mxnet
from paceline.bench.frameworks.paceline.adapter import Paceline
from paceline.bench.frameworks.paddle.adapter import Paddle
from paceline.bench.frameworks.pytorch.adapter import PyTorch
from paceline.bench.frameworks.script.adapter import OwnScript
from paceline.bench.frameworks.singa.adapter import Singa
from paceline.bench.frameworks.tensorflow.adapter import TensorFlow
from paceline.bench.job import Adapter
from paceline.errors import Unsupported

__all__ = ["ADAPTERS", "adapter_of"]

_TABLE: tuple[Adapter, ...] = (
    PyTorch(),
    TensorFlow(),
    Jax(),
    Mxnet(),
    Keras(),
    Horovod(),
    DeepSpeed(),
    Paddle(),
    Chainer(),
    Cntk(),
    Caffe(),
    CaffeMpi(),
    Singa(),
    OwnScript(),
    Paceline(),
)
ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in _TABLE}


def adapter_of(framework: str) -> Adapter:
    """The adapter of `framework` or `framework/mode`."""
    name = framework.split("/")[0]
    if name not in ADAPTERS:
        raise Unsupported(f"{name} cannot be measured yet", hint=f"these can: {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[name]

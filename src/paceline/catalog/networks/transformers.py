"""Transformers: GPT-2 (decoder, pre-norm, tied head) and BERT (encoder, post-norm, pooler)."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.catalog.networks.graph import Graph
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

__all__ = ["BERT_BASE", "GPT2", "GPT2_TINY", "Size", "bert", "gpt2"]


@dataclass(frozen=True)
class Size:
    """What distinguishes transformers of one family."""

    vocabulary: int
    positions: int
    width: int
    heads: int
    blocks: int


GPT2 = Size(vocabulary=50257, positions=1024, width=768, heads=12, blocks=12)
GPT2_TINY = Size(vocabulary=512, positions=64, width=64, heads=4, blocks=2)
BERT_BASE = Size(vocabulary=30522, positions=512, width=768, heads=12, blocks=12)


def gpt2(name: str, size: Size) -> Network:
    """GPT-2 on full-length text; the head shares the embedding's table; no dropout, as in later pre-training."""
    graph = Graph()
    graph.add(Embedding(name="tokens", rows=size.vocabulary, width=size.width))
    graph.add(PositionEmbedding(name="positions", rows=size.positions))
    for block in range(1, size.blocks + 1):
        _decoder_block(graph, f"block{block}", size)
    graph.add(LayerNorm(name="norm"))
    graph.linear("head", size.vocabulary, bias=False, tied_to="tokens")
    return graph.tokens(name, size.positions, vocabulary=size.vocabulary)


def bert(name: str, size: Size, *, length: int) -> Network:
    """BERT with its pooler; the pooled vector serves as logits, so that no parameter is added to the published ones."""
    graph = Graph()
    graph.add(Embedding(name="tokens", rows=size.vocabulary, width=size.width))
    graph.add(PositionEmbedding(name="positions", rows=size.positions))
    graph.add(TypeEmbedding(name="types", rows=2))
    graph.add(LayerNorm(name="norm", eps=1e-12))
    graph.dropout("drop", 0.1)
    for block in range(1, size.blocks + 1):
        _encoder_block(graph, f"block{block}", size)
    graph.add(FirstToken(name="first"))
    graph.linear("pooler", size.width)
    graph.add(Tanh(name="pooler_tanh"))
    return graph.tokens(name, length, vocabulary=size.vocabulary)


def _decoder_block(graph: Graph, name: str, size: Size) -> None:
    before = graph.last
    graph.add(LayerNorm(name=f"{name}_norm1"))
    attended = graph.add(Attention(name=f"{name}_attention", heads=size.heads, causal=True))
    middle = graph.sum(f"{name}_add1", before, attended)
    graph.add(LayerNorm(name=f"{name}_norm2"))
    graph.linear(f"{name}_up", 4 * size.width)
    graph.add(Gelu(name=f"{name}_gelu", approximate=True))
    graph.sum(f"{name}_add2", middle, graph.linear(f"{name}_down", size.width))


def _encoder_block(graph: Graph, name: str, size: Size) -> None:
    before = graph.last
    graph.add(Attention(name=f"{name}_attention", heads=size.heads))
    graph.sum(f"{name}_add1", before, graph.dropout(f"{name}_drop1", 0.1))
    middle = graph.add(LayerNorm(name=f"{name}_norm1", eps=1e-12))
    graph.linear(f"{name}_up", 4 * size.width)
    graph.add(Gelu(name=f"{name}_gelu"))
    graph.linear(f"{name}_down", size.width)
    graph.sum(f"{name}_add2", middle, graph.dropout(f"{name}_drop2", 0.1))
    graph.add(LayerNorm(name=f"{name}_norm2", eps=1e-12))

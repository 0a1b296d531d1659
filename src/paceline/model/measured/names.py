"""Free-text labels matched to properties: networks to parameters, links to rates, strategies to their kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from paceline import catalog
from paceline.catalog.published import published_parameters
from paceline.spec.network import layer_costs

__all__ = ["LinkKind", "StrategyKind", "every_pair_linked", "link_kind", "normal", "parameters_of", "strategy_kind"]

_RATE = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*g(?:b|i|e|$|\s)")
_VARIANT = re.compile(r"(v15|v1|default|pretraining|phase1|phase2|uncased|cased)$")
_SERVER = re.compile(r"(?:^|[^a-z])ps(?:[^a-z]|$)|param\w*[ _-]?server|kvstore|dist_sync|distributed tensorflow|byteps")
_NO_OVERLAP = re.compile(r"(?:^|[^a-z])bsp(?:[^a-z]|$)|no overlap|without overlap|cntk")
_OVERLAP = re.compile(r"wfbp|overlap|ddp|horovod|bytescheduler|replicated|byteps|kvstore|server")
_INSIDE = re.compile(r"nvlink|nvswitch|pcie|pci-e|xgmi|infinity fabric")
_BETWEEN = re.compile(
    r"infiniband|ethernet|roce|rdma|tcp|slingshot|aries|omni|efa|ec2|between|\bib\b|gbe|gb ?ib|network"
)
_CARD = re.compile(r"rtx|gtx|titan|quadro|pci-?e|k80|\b(?:a6000|a5000|a40|a10g?|t4|l4|l40s?)\b")
_MESH = re.compile(r"nvlink|nvswitch|sxm|dgx|hgx|\bmi[23]\d\d|xgmi|infinity fabric|tpu|gb[23]00")
_STATED = {"aries": 10e9, "nvlink": 100e9, "nvswitch": 200e9, "infiniband": 12e9, "ec2": 1.5e9, "pcie": 10e9}


def normal(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def parameters_of(network: str) -> float | None:
    """Parameters of a network by a common name; None if unknown."""
    name = normal(network)
    for candidate in (name, _VARIANT.sub("", name)):
        if candidate in published_parameters():
            return published_parameters()[candidate]
        for known in catalog.network_names():
            if candidate in (normal(known), normal(known).replace("inceptionv", "inception")):
                return float(sum(cost.parameters for cost in layer_costs(catalog.network(known))))
    return None


@dataclass(frozen=True)
class LinkKind:
    """Facts from the label of a link."""

    bandwidth: float | None
    """Bytes per second, if the label states them."""
    through_kernel: bool
    """TCP through the operating system, not remote direct memory access."""
    inside: bool = False
    """The label names a link that never leaves a host, and no other."""


@cache
def link_kind(label: str) -> LinkKind:
    """Rate and protocol from what people call a link."""
    text = label.lower()
    remote = "rdma" in text or "roce" in text or "infiniband" in text or re.search(r"\bib\b|gbib|gb ib|[ehnf]dr", text)
    kernel = "tcp" in text or (not remote and ("gbe" in text or "ethernet" in text or "ec2" in text))
    inside = bool(_INSIDE.search(text)) and not _BETWEEN.search(text)
    match = _RATE.search(text)
    if match:
        return LinkKind(float(match.group(2)) * float(match.group(1) or 1) / 8 * 1e9, kernel, inside)
    stated = next((rate for word, rate in _STATED.items() if word in text), None)
    return LinkKind(stated, kernel, inside)


@cache
def every_pair_linked(device: str, link: str) -> float:
    """1 if all devices of a host are linked to each other, 0 if they are cards on a shared bus; 0.5 if unknown.

    Cards may be bridged in pairs, so that two of them do not predict four.
    """
    if _CARD.search(device.lower()) or "pcie" in link.lower():
        return 0.0
    return 1.0 if _MESH.search(f"{device} {link}".lower()) else 0.5


@dataclass(frozen=True)
class StrategyKind:
    """The kind of aggregation, from the names of framework and strategy."""

    servers: bool
    overlap: bool | None
    """None if the label does not say."""


@cache
def strategy_kind(label: str) -> StrategyKind:
    """Kind of aggregation from what people call framework and strategy."""
    text = label.lower()
    if _NO_OVERLAP.search(text):
        overlap: bool | None = False
    else:
        overlap = True if _OVERLAP.search(text) else None
    return StrategyKind(bool(_SERVER.search(text)), overlap)

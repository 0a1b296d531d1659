"""What the graph behind a loss says about its reduction: a mean over samples, a mean over other items, or a sum.

The nodes of the graph that add, scale and divide scalars are followed from the loss to the reductions behind them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from paceline.errors import InputError

__all__ = ["LossReduction", "leaves_out", "parameters_behind", "seems_summed"]

log = logging.getLogger("paceline.runtime")
TERMS = 256
"""Nodes behind a loss that are looked at."""
MEAN, SUM = 1, 2
"""The numbers that PyTorch gives reductions in its graph."""
REDUCTIONS: dict[object, str] = {MEAN: "mean", SUM: "sum"}
ADDING = {"Add", "Sub", "Rsub", "Neg", "Stack", "Cat"}
PASSING = {"ToCopy", "Clone", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand", "Select"}
"""Nodes that change the type or the shape of a scalar only."""
LOSSES = 3
"""Losses that a loop may have in turn; if means are over more different numbers of items, these follow the data."""
WHOLE = 1e-4
"""Relative distance at which a divisor counts as a multiple of the number of samples."""


@dataclass(frozen=True)
class _Term:
    """A node that the loss depends on through sums, products and quotients of scalars."""

    node: Any
    divisor: float = 1.0
    """What the term is divided by on the way to the loss."""
    factors: tuple[float, ...] = ()
    """What it is multiplied by."""

    @property
    def kind(self) -> str:
        """Name of the operator: `Add` for AddBackward0."""
        return str(self.node.name()).partition("Backward")[0]

    def averages(self, samples: int) -> bool:
        """Whether a sum becomes a mean over this many samples, or over a multiple of them."""
        whole = [self.divisor, *(self.divisor / abs(factor) for factor in self.factors if factor)]
        return any(_multiple(divisor, samples) for divisor in whole)


class LossReduction:
    """What the settings say of the user's losses, held to what their graphs say."""

    def __init__(self, told: str) -> None:
        """`told`: the reduction over samples, mean or sum."""
        self._told, self._warned = told, False
        self._items: dict[int, set[int]] = {}
        """Numbers of items that the means of losses were over, by the number of samples."""

    def check(self, loss: torch.Tensor) -> None:
        """Refuse a loss that is plainly a sum where the settings say that it is a mean, or the other way round."""
        found = REDUCTIONS.get(getattr(loss.grad_fn, "_saved_reduction", None), self._told)
        if found != self._told:
            raise InputError(
                f"the loss has reduction={found!r}, the settings have reduction={self._told!r}: ranks would be "
                "weighted wrongly",
                hint=f"Settings(reduction={found!r}), which then holds for the whole loss",
            )

    def lacks_count(self, loss: torch.Tensor, samples: int) -> bool:
        """Whether a loss that came without a count is no mean over samples; a warning, once, if it only seems so."""
        if self._told != "mean" or not samples:
            return False
        items = self._items.setdefault(samples, set())
        items.add(sum(_averaged(term) for term in _terms(loss)))
        if not self._warned and (len(items) > LOSSES or seems_summed(loss, samples)):
            self._warned = True
            log.warning(
                "the loss does not seem to be the mean over the samples of a batch, here %d: ranks with different "
                "shares would count their samples differently. If it is the mean over tokens, chosen targets or "
                "weights, pace.step(loss, count=...) says of how many; if it is a sum over samples, divide it by "
                "len(batch.indices) or set Settings(reduction='sum'); count=len(batch.indices) takes it as it is",
                samples,
            )
        return leaves_out(loss, samples)


def leaves_out(loss: torch.Tensor, samples: int) -> bool:
    """Whether a loss is no mean over samples.

    It contains a loss of PyTorch's with reduction='sum' that is not divided by the samples, or a cross entropy whose
    mean is over a part of the targets, or weighted; or it consists of such sums over the first dimension.
    """
    terms = list(_terms(loss)) if samples else []
    ends = [term for term in terms if not _parts(term) and not _is_penalty(term.node)]
    return any(_is_partial(term, samples) for term in terms) or (
        samples > 1
        and len(ends) > 0
        and all(term.kind == "Sum" and _shape(term.node)[:1] == (samples,) for term in ends)
        and not any(term.averages(samples) for term in ends)
    )


def seems_summed(loss: torch.Tensor, samples: int) -> bool:
    """Whether a part of a loss is the sum of as many numbers as there could be samples, divided by another number.

    A sum over the numbers of a parameter is a penalty on it.
    """
    if samples < 2:
        return False
    sums = (term for term in _terms(loss) if term.kind == "Sum" and not _adds_terms(term.node))
    return any(
        _shape(term.node).numel() % samples == 0 and not term.averages(samples) and not _is_penalty(term.node)
        for term in sums
    )


def parameters_behind(loss: torch.Tensor, *, but: Set[int]) -> list[nn.Parameter]:
    """Parameters on which a loss depends, but for those with these identities."""
    nodes, seen, found = [loss.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [more for more, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in but:
            found.append(leaf)
    return found


def _terms(loss: torch.Tensor) -> Iterator[_Term]:
    """The terms of a loss, each after what it is a part of."""
    left = [_Term(loss.grad_fn)] if loss.grad_fn is not None else []
    for number in itertools.count():
        if number == min(len(left), TERMS):
            return
        yield left[number]
        left += _parts(left[number])


def _parts(term: _Term) -> list[_Term]:
    """What a term adds up, scales or divides."""
    below = [replace(term, node=node) for node, _ in term.node.next_functions if node is not None]
    if term.kind in ADDING | PASSING or (term.kind == "Sum" and _adds_terms(term.node)):
        return below
    if term.kind == "Div":
        divisor = abs(_saved(term.node, "other"))
        return [replace(part, divisor=term.divisor * divisor) for part in below[:1]]
    if term.kind != "Mul":
        return []
    factors = [_saved(term.node, "other"), _saved(term.node, "self")]
    nodes = zip(term.node.next_functions, factors, strict=False)
    return [replace(term, node=node, factors=(*term.factors, by)) for (node, _), by in nodes if node is not None]


def _averaged(term: _Term) -> int:
    """The number of items that a term is the mean over; 0 if it is none."""
    if term.kind.startswith("NllLoss"):
        return int(term.node._saved_target.numel())
    mean = term.kind == "Mean" or getattr(term.node, "_saved_reduction", None) == MEAN
    return _shape(term.node).numel() if mean else 0


def _is_partial(term: _Term, samples: int) -> bool:
    reduction = getattr(term.node, "_saved_reduction", None)
    if reduction == SUM:
        return samples > 1 and not term.averages(samples) and not _is_penalty(term.node)
    if not term.kind.startswith("NllLoss") or reduction != MEAN:
        return False
    targets = int(term.node._saved_target.numel())
    return targets % samples > 0 or float(term.node._saved_total_weight) != targets


def _saved(node: Any, name: str) -> float:
    """A scalar that a node was given; 1 if it is none."""
    value = getattr(node, f"_saved_{name}", None)
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.numel() == 1 and not value.is_complex() else 1.0
    return float(value) if isinstance(value, int | float) else 1.0


def _adds_terms(node: Any) -> bool:
    """Whether a sum is over scalars that the loop has put together."""
    below = node.next_functions[0][0]
    return below is not None and str(below.name()).startswith(("Stack", "Cat"))


def _shape(node: Any) -> torch.Size:
    """Shape of what a node reduces."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        sizes = getattr(getattr(node, "_saved_self", None), "shape", ())
    return torch.Size(sizes)


def _is_penalty(node: Any) -> bool:
    """Whether a reduction is over the numbers of one parameter."""
    shape = _shape(node)
    while True:
        below = [more for more, _ in node.next_functions if more is not None]
        if len(below) != 1:
            return False
        node = below[0]
        if hasattr(node, "variable"):
            return isinstance(node.variable, nn.Parameter) and node.variable.shape == shape


def _multiple(divisor: float, samples: int) -> bool:
    """Whether a divisor is the number of samples, or a multiple of it."""
    times = divisor / samples
    return round(times) >= 1 and abs(times - round(times)) <= WHOLE * times

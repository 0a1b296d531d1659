"""FSDP2 computes what the reference computes, also for layers that share a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.verify import PROOF_NETWORKS, verify_framework


@pytest.mark.full
def test_a_sharded_network_with_tied_layers_equals_the_reference(pytorch: Path) -> None:
    (proof,) = (
        proof
        for proof in verify_framework("pytorch/fsdp2", {"transformer": PROOF_NETWORKS["transformer"]})
        if proof.ranks == 2
    )
    assert (proof.status, proof.reason) == ("equal", "")

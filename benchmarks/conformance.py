"""Frameworks compute the same: logits, loss, gradients and trained weights against a float64 reference.

    .venv/bin/python benchmarks/conformance.py [FRAMEWORK ...]

What `paceline frameworks verify` compares, for the modes named, or for every one that is installed; then, for one mode
of each framework that builds networks its own way, a generated family of small networks: every kind of layer with even
and odd sizes, strides, paddings, rounding up and groups, on images and sequences. A network is equal or refused before
a launch; anything else fails.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict

from lib.result import Figure, parser_of, publish

from paceline.bench.adapters import missing_environments
from paceline.bench.verify import BUILDERS, UNKNOWN, Verification, verify_family, verify_framework
from paceline.catalog.frameworks import framework_names


def main() -> int:
    """Compare, and count."""
    parser = parser_of(__doc__)
    parser.add_argument("frameworks", nargs="*")
    args = parser.parse_args()
    known = [name for name in framework_names() if name.split("/")[0] not in UNKNOWN]
    asked = args.frameworks or [name for name in known if not missing_environments(name)]
    proofs = [proof for name in asked for proof in shown(list(verify_framework(name)))]
    family = [proof for name in asked if name in BUILDERS for proof in shown(list(verify_family(name)))]
    absent = [name for name in known if name not in asked]
    passed = all(proof.status in ("equal", "skipped") for proof in proofs + family) and bool(proofs)
    turns = {"proofs": [*map(asdict, proofs)], "family": [*map(asdict, family)], "not installed": absent}
    return publish(args, [*figures_of(proofs, ""), *figures_of(family, "family: ")], turns=turns, passed=passed)


def shown(proofs: list[Verification]) -> list[Verification]:
    """The same proofs, counted for whoever waits."""
    counts = Counter(proof.status for proof in proofs)
    print(f"{proofs[0].framework}: {', '.join(f'{number} {status}' for status, number in counts.items())}", flush=True)
    for proof in proofs:
        if proof.status not in ("equal", "skipped"):
            print(f"  {proof.network} on {proof.ranks}: {proof.status}: {proof.reason.splitlines()[0]}", flush=True)
    return proofs


def figures_of(proofs: list[Verification], kind: str) -> list[Figure]:
    """How many modes and comparisons, and the largest error."""
    equal = [proof for proof in proofs if proof.status == "equal"]
    judged = [proof for proof in proofs if proof.status != "skipped"]
    return [
        Figure(f"{kind}modes of frameworks", len({proof.framework for proof in judged})),
        Figure(f"{kind}comparisons", len(judged)),
        Figure(f"{kind}equal", len(equal)),
        Figure(f"{kind}refused before a launch", len(proofs) - len(judged)),
        Figure(f"{kind}largest relative error", max((proof.error or 0.0 for proof in equal), default=0.0)),
    ]


if __name__ == "__main__":
    sys.exit(main())

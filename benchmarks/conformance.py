"""Frameworks compute the same: logits, loss, gradients and trained weights against a float64 reference.

    .venv/bin/python benchmarks/conformance.py [FRAMEWORK ...]

What `paceline frameworks verify` compares, for the frameworks named, or for every one that is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys

from lib.result import Figure, parser_of, publish


def main() -> int:
    """Compare, and count."""
    parser = parser_of(__doc__)
    parser.add_argument("frameworks", nargs="*")
    args = parser.parse_args()
    argv = [sys.executable, "-m", "paceline", "frameworks", "verify", *args.frameworks, "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    proofs = json.loads(done.stdout)["proofs"]
    equal = [proof for proof in proofs if proof["status"] == "equal"]
    judged = [proof for proof in proofs if proof["status"] != "skipped"]
    figures = [
        Figure("modes of frameworks", len({proof["framework"] for proof in judged})),
        Figure(f"equal of {len(judged)} comparisons", len(equal)),
        Figure("largest relative error", max((proof["error"] or 0.0 for proof in equal), default=0.0)),
    ]
    return publish(args, figures, turns=proofs, passed=bool(equal) and len(equal) == len(judged))


if __name__ == "__main__":
    sys.exit(main())

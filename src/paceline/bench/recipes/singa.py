"""The environment of SINGA, whose only wheel with CPU support is a preview for CPython 3.6, with a current CPython."""

from __future__ import annotations

from paceline.bench.recipes.recipe import Workshop
from paceline.bench.recipes.transplant import fetch_wheel, unpack

__all__ = ["transplant_singa"]

SHA256 = "a31fa73657c76d6275a91c855eb0b095d45b374c9b8043aebf31b9e28e6d7c1f"


def transplant_singa(workshop: Workshop) -> None:
    """Unpack the wheel beside its dependencies."""
    wheel = fetch_wheel(workshop, "singa==3.0.0.dev1", python="3.6", sha256=SHA256, pre=True)
    unpack(wheel, workshop.packages)

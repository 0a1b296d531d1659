"""`paceline compare`: do two groups of launches differ?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.output import emit, json_option, say, store_option
from paceline.cli.results import plain_interval
from paceline.errors import InputError
from paceline.measurements.store import Store
from paceline.measurements.summary import Comparison, compare
from paceline.measurements.tables import throughputs_where

__all__ = ["command"]


@click.command()
@click.argument("sample")
@click.argument("base")
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True)
@store_option
@json_option
def command(sample: str, base: str, confidence: float, store: Path, as_json: bool) -> None:
    """Compare the throughput of SAMPLE with that of BASE: ratio of medians, its interval, a rank test.

    Each side is a list of conditions `field=value`, joined by commas, that chooses launches: study, campaign, network,
    framework, strategy, cluster, launcher, ranks, batch, input, case_id. "No difference shown" is an answer, and so is
    "too few launches".

    \b
    Examples:
      paceline compare study=demo,ranks=2 study=demo,ranks=1
      paceline compare framework=jax/data_parallel,network=resnet20 framework=pytorch/ddp,network=resnet20
    """
    place = Store(store)
    groups = [throughputs_where(place, text) for text in (sample, base)]
    for text, group in zip((sample, base), groups, strict=True):
        if not group:
            raise InputError(
                f"no successful launch matches {text!r}", hint="`paceline show --list` lists what is stored"
            )
    result = compare(*groups, confidence=confidence)
    if as_json:
        emit(_document(result, sample, base), "compare")
    else:
        _say(result, sample, base, confidence)


def _document(result: Comparison, sample: str, base: str) -> dict[str, Any]:
    return {
        "sample": sample,
        "base": base,
        "ratio": plain_interval(result.ratio),
        "p_value": result.p_value,
        "launches": list(result.launches),
        "verdict": result.verdict,
    }


def _say(result: Comparison, sample: str, base: str, confidence: float) -> None:
    ratio, percent = result.ratio, f"{100 * confidence:g} %"
    say(f"{sample}  against  {base}")
    say(f"  throughput ratio {ratio.value:.3f}, {percent} interval {ratio.low:.3f} to {ratio.high:.3f}")
    say(f"  rank test p = {result.p_value:.3g} with {result.launches[0]} and {result.launches[1]} launches")
    say(f"  {result.verdict}")

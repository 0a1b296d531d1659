"""`paceline transformer`: predict time and memory of an iteration with tensor, pipeline and data parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.options import json_option, size_options
from paceline.model.transformer.iterations import predict_from, read_iterations
from paceline.model.transformer.shape import Parallel, TransformerShape, check_memory
from paceline.model.validation.gpt import predict_published
from paceline.report.terminal import emit, say
from paceline.report.terminal.records import show_transformer_memory
from paceline.units import BYTES, SECONDS

__all__ = ["command"]


@click.command()
@size_options
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, help="ZeRO stage.")
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="full",
    show_default=True,
    help="What the backward pass recomputes.",
)
@click.option(
    "--measured", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="CSV file of iterations of your machine: seconds, and each size that differs.",
)  # fmt: skip
@click.option("--memory", default="80 GiB", show_default=True, help="Memory of one device.")
@json_option
def command(zero: int, recompute: Any, measured: Path | None, memory: str, as_json: bool, **sizes: int) -> None:
    """Predict an iteration on hosts with eight A100, with intervals, from published iterations.

    With --measured on your own machine, of hosts with eight devices, from three or more iterations measured there.

    \b
    Examples:
      paceline transformer --tensor 2 --pipeline 2 --data 2 --global-batch 64
      paceline transformer --hidden 12288 --heads 96 --layers 96 --sequence 2048 \\
        --tensor 8 --pipeline 16 --data 4 --micro-batch 2 --global-batch 1536 --recompute full
      paceline transformer --tensor 4 --data 2 --memory "180 GiB" --measured iterations.csv
    """
    shape = TransformerShape(*(sizes[name] for name in ("hidden", "heads", "layers", "sequence", "vocabulary")))
    parallel = Parallel(
        sizes["tensor"], sizes["pipeline"], sizes["data"], sizes["micro_batch"], sizes["global_batch"],
        interleave=sizes["interleave"], zero_stage=zero, recompute=recompute,
    )  # fmt: skip
    use = check_memory(shape, parallel, device_bytes=BYTES.parse(memory))
    if measured is None:
        step = predict_published(shape, parallel)
    else:
        step = predict_from(read_iterations(measured, shape, parallel), shape, parallel)
    if as_json:
        emit({"devices": parallel.devices, "parameters": shape.parameters, "step_s": step.value,
              "interval_50": list(step.interval_50), "interval_90": list(step.interval_90),
              "memory_bytes": {**vars(use), "total": use.total}}, "transformer")  # fmt: skip
        return
    low, high = (SECONDS.format(bound) for bound in step.interval_90)
    tokens = parallel.global_batch * shape.sequence / step.value
    say(f"{shape.parameters / 1e9:.2f} billion parameters on {parallel.devices} devices")
    say(f"iteration {SECONDS.format(step.value)} (90 %: {low} to {high}), {tokens:,.0f} tokens/s")
    show_transformer_memory(use, memory)

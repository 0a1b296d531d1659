"""`paceline import`: traces, logs and dumps of other tools as runs of the store."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.options import COUNT, json_option, store_option
from paceline.explain.imports import IMPORT_KINDS, Labels, import_files
from paceline.measurements.store import Store
from paceline.report.terminal import emit
from paceline.report.terminal.imports import imported_document, show_imported

__all__ = ["command"]


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the run, for show, explain and report; by default that of the first file.")
@click.option("--kind", metavar="|".join(IMPORT_KINDS), help="Format of the files, if not evident from their content.")
@click.option("--network", default="model", show_default=True, help="Name of the model.")
@click.option("--framework", help="Framework and mode, such as pytorch/ddp.")
@click.option("--batch", type=COUNT, help="Samples per device and step, for samples/s.")
@click.option("--cluster", default="local", show_default=True, help="Cluster on which the job ran, for predict.")
@click.option("--operation", help="Collective of the nccl-tests, if their output does not name it.")
@click.option("--partial", is_flag=True, help="Accept that traces of some ranks are missing.")
@store_option
@json_option
def command(
    files: tuple[Path, ...], name: str | None, kind: str | None, network: str, framework: str | None, batch: int | None,
    cluster: str, operation: str | None, partial: bool, store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Import records of one job from other tools: analyse them, and store them as a run if they contain steps.

    Traces of torch.profiler (one file per rank, also .json.gz), Chrome events, Horovod's timeline, Chakra; dumps of
    PyTorch's flight recorder (a folder); output of nccl-tests; logs of torchtitan, Megatron, HF Trainer and Lightning;
    tables of the operations of a job with pipeline stages.

    \b
    Examples:
      paceline import trace-rank*.json --name my-run && paceline explain my-run
      paceline import fr_dump/
      paceline import train.log --name titan
      paceline import nccl-tests.txt --cluster dgx-a100
    """
    labels = Labels(name, network, framework, batch, cluster, operation, partial)
    imported = import_files(files, Store(store), labels, kind)
    if as_json:
        emit(imported_document(imported), "import")
    else:
        show_imported(imported)

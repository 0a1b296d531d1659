"""`paceline frameworks`: list, install and verify frameworks."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

import click

from paceline.bench.adapters import availability, environments_of, missing_environments
from paceline.bench.environments import find_environment, prepare
from paceline.bench.verify import PROOF_NETWORKS, Verification, verify_family, verify_framework
from paceline.catalog.frameworks import framework, framework_names, framework_record
from paceline.cli import Commands
from paceline.cli.options import complete_frameworks, json_option
from paceline.errors import EnvironmentFailed
from paceline.report.terminal import emit, print_rows, say
from paceline.report.terminal.progress import Display
from paceline.report.terminal.records import verification_line

__all__ = ["command"]


@click.group(cls=Commands, invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List all frameworks: ready, installable, or unavailable with the reason.

    \b
    Examples:
      paceline frameworks
      paceline frameworks install tensorflow horovod
      paceline frameworks verify jax mxnet/dist_sync
    """
    if ctx.invoked_subcommand is not None:
        return
    frameworks = availability()
    if as_json:
        emit({"frameworks": [dataclasses.asdict(item) for item in frameworks]}, "frameworks")
        return
    rows = [(item.name, item.status, item.origin, ", ".join(item.modes), item.reason) for item in frameworks]
    print_rows("", ["framework", "status", "from", "modes", "note"], rows)


@command.command()
@click.argument("names", nargs=-1, required=True, metavar="FRAMEWORK...", shell_complete=complete_frameworks)
@json_option
def install(names: tuple[str, ...], as_json: bool) -> None:
    """Create the isolated, pinned environments of the frameworks; `all` selects all of them.

    Existing environments are kept. A failed install leaves no files, and the remaining installs continue.

    \b
    Examples:
      paceline frameworks install tensorflow
      paceline frameworks install horovod/pytorch caffe
    """
    wanted = [item.name for item in availability() if item.environments] if "all" in names else list(names)
    needed = dict.fromkeys(env for name in wanted for env in environments_of(_checked(name)))
    failures: list[EnvironmentFailed] = []
    with Display(quiet=as_json) as display:
        made = [_install_one(name, display, failures) for name in needed]
    if as_json:
        emit({"environments": made}, "frameworks.install")
    else:
        rows = [(item["environment"], item["outcome"], item["seconds"]) for item in made]
        print_rows("", ["environment", "", ">seconds"], rows)
    if failures:
        raise EnvironmentFailed("\n".join(error.message for error in failures), hint=failures[0].hint)


def _install_one(name: str, display: Display, failures: list[EnvironmentFailed]) -> dict[str, Any]:
    begin, outcome = time.monotonic(), "was there"
    if find_environment(name) is None:
        try:
            with display.installing(name) as progress:
                prepare(name, progress)
            outcome = "made"
        except EnvironmentFailed as error:
            failures.append(error)
            outcome = "failed"
    return {"environment": name, "outcome": outcome, "seconds": round(time.monotonic() - begin, 1)}


@command.command()
@click.argument("names", nargs=-1, metavar="[FRAMEWORK...]", shell_complete=complete_frameworks)
@click.option("--network", "networks", multiple=True, type=click.Choice(sorted(PROOF_NETWORKS)), help="Only these.")
@click.option("--family", is_flag=True, help="Instead: 65 small networks, every layer in many sizes, on one rank.")
@json_option
def verify(names: tuple[str, ...], networks: tuple[str, ...], family: bool, as_json: bool) -> None:
    """Verify that frameworks compute equal logits, loss, gradients, and weights after three steps on 1 and 2 ranks.

    Without names: every mode of every framework that is ready. Modes whose environment is not installed are skipped.
    Exits 1 if any comparison fails.

    \b
    Examples:
      paceline frameworks verify
      paceline frameworks verify tensorflow caffe-mpi --network plain
      paceline frameworks verify pytorch jax --family
    """
    chosen = {name: PROOF_NETWORKS[name] for name in networks} if networks else None
    proofs: list[Verification] = []
    for name in _modes(names):
        for proof in verify_family(name) if family else verify_framework(name, chosen):
            proofs.append(proof)
            if not as_json:
                say(verification_line(proof))
    bad = [proof for proof in proofs if proof.status in ("different", "failed")]
    if as_json:
        emit({"ok": not bad, "proofs": [dataclasses.asdict(proof) for proof in proofs]}, "frameworks.verify")
    else:
        equal = sum(proof.status == "equal" for proof in proofs)
        say(f"{equal} equal, {len(bad)} not, {len(proofs) - equal - len(bad)} not applicable")
    sys.exit(1 if bad else 0)


def _checked(name: str) -> str:
    framework(name)
    return name


def _modes(names: tuple[str, ...]) -> list[str]:
    """Full names: a framework without mode means all its modes, no name means all that are ready."""
    if not names:
        ready = {item.name for item in availability() if item.status == "ready"}
        return [name for name in framework_names() if name.split("/")[0] in ready]
    full_names = []
    for name in names:
        full = framework(name)
        modes = framework_record(full.split("/")[0]).mode
        asked = [full] if "/" in name else [f"{name}/{mode}" for mode in modes]
        if all(missing_environments(one) for one in asked):
            raise EnvironmentFailed(f"{name} is not installed", hint=f"paceline frameworks install {name}")
        full_names += asked
    return full_names

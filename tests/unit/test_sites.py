"""Sites of this machine do what every site must, and none can be used in a wrong order."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.sites.local import LocalLauncher
from paceline.bench.sites.site import Process
from paceline.catalog import cluster
from paceline.errors import LaunchFailed
from tests.integration.site_conformance import check_launcher


def test_the_local_launcher_conforms(tmp_path: Path) -> None:
    check_launcher(LocalLauncher(), cluster("local"), tmp_path)


def test_the_conformance_check_can_fail(tmp_path: Path) -> None:
    class FewPorts(LocalLauncher):
        def open(self, *args: object, **options: object) -> object:
            return super().open(*args, **{**options, "num_ports": 2})  # type: ignore[arg-type]

    with pytest.raises(AssertionError, match="shared ports"):
        check_launcher(FewPorts(), cluster("local"), tmp_path)


def test_a_program_that_is_not_there_is_a_failed_launch(tmp_path: Path) -> None:
    process = Process("rank 0", 0, ("/nowhere/python",), {}, tmp_path / "log", rank=0)
    with LocalLauncher().open(cluster("local"), 1) as site, pytest.raises(LaunchFailed, match="cannot start rank 0"):
        site.start([process])

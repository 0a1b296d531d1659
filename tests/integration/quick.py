"""The `paceline` command with PyTorch's worker replaced by one that needs no framework.

Everything else is real: processes, rendezvous, harness, launcher, campaign, store. It lets a study of dozens of
launches run in seconds, for tests of what happens around the measured step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paceline.bench.adapters as adapters
import paceline.bench.launch as launching
import paceline.bench.measure as measure
import paceline.cli as cli
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.study import Case

STUBBORN = 7
"""A batch with which nothing overlaps that was asked to."""
WORKER = Path(__file__).parent / "quick_worker.py"


class Quick:
    name = "pytorch"

    def environment(self, mode: str) -> str:
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        return "it cannot overlap" if case.batch == STUBBORN and case.strategy.overlap else None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        from dataclasses import replace

        script = (str(launch.python), "-S", str(WORKER))
        return [replace(process, argv=script) for process in rank_processes(launch, "unused")]


def here(name: str) -> Path:
    """The environment that runs the tests serves as the worker's."""
    return Path(sys.prefix)


def main() -> None:
    """Run the command line with the worker replaced."""
    adapters.ADAPTERS["pytorch"] = Quick()
    launching.find_environment = here
    measure.find_environment = here
    cli.main()


if __name__ == "__main__":
    main()

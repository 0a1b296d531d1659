"""The adapter for a user's training command."""

from __future__ import annotations

import re
from pathlib import Path

from paceline import variables
from paceline.bench.environments import environment_variables, find_environment
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.study import Case

__all__ = ["OwnScript"]

GROUPS = ("throughput", "per_rank", "seconds")


class OwnScript:
    """Runs the command of the study, which starts its own ranks, and extracts the speed from its output."""

    name = "script"

    def environment(self, mode: str) -> str:
        """An empty environment: the command has its own."""
        return "script"

    def refusal(self, case: Case) -> str | None:
        """Refuse a study without a command."""
        if case.script is None:
            return "the study has no [script] table: give command, and pattern unless it prints Paceline's lines"
        if case.script.environment and find_environment(case.script.environment) is None:
            name = case.script.environment
            return f"the {name} environment is not there: paceline frameworks install {name}"
        if case.script.pattern is None:
            return None
        try:
            groups = set(re.compile(case.script.pattern).groupindex)
        except re.error as error:
            return f"script.pattern is no regular expression: {error}"
        return None if groups & set(GROUPS) else f"script.pattern needs one of the groups {', '.join(GROUPS)}"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One process, which runs the command and watches its output."""
        script = launch.case.script
        assert script is not None
        env = {variables.HERE: str(Path.cwd())}
        if script.environment:
            folder = find_environment(script.environment)
            env |= {**environment_variables(script.environment), variables.BIN: str(folder / "bin") if folder else ""}
        module = "paceline.bench.frameworks.script.worker"
        return [rank_processes(launch, module, lambda placed: env)[0]]

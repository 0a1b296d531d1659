"""MLPerf logging lines (`:::MLLOG`): one run block per launch, as mlperf_logging's parser reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from paceline.explain.explanation import CaseExplanation

__all__ = ["mlperf_lines"]


def mlperf_lines(cases: Iterable[CaseExplanation]) -> list[str]:
    """Lines for every launch of every case, in order."""
    return [line for case in cases for line in _case_lines(case)]


def _case_lines(case: CaseExplanation) -> list[str]:
    rates = iter(case.evidence.launches.throughputs)
    steps = iter(case.evidence.launches.steps)
    lines: list[str] = []
    for run in case.evidence.launches.runs:
        begin = round(datetime.fromisoformat(run.started_at).timestamp() * 1000)
        end = begin + round(run.seconds * 1000)
        facts: list[tuple[str, Any]] = [
            ("submission_benchmark", run.network),
            ("submission_platform", f"{run.cluster} x {run.ranks}"),
            ("submission_division", "open"),
            ("submission_org", "paceline"),
            ("submission_status", "research"),
            ("global_batch_size", run.batch * run.ranks),
        ]
        lines += [_line("POINT_IN_TIME", key, value, begin) for key, value in facts]
        lines.append(_line("INTERVAL_START", "run_start", None, begin, framework=run.framework, run=run.id))
        if run.outcome == "ok":
            measured = {"throughput": next(rates), "step_s": next(steps)}
            lines.append(_line("POINT_IN_TIME", "tracked_stats", measured, end, step=run.launch))
        status = "success" if run.outcome == "ok" else "aborted"
        lines.append(_line("INTERVAL_END", "run_stop", None, end, status=status))
    return lines


def _line(event: str, key: str, value: Any, at: int, **metadata: Any) -> str:
    content = {
        "namespace": "",
        "time_ms": at,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "paceline", "lineno": 0, **metadata},
    }
    return f":::MLLOG {json.dumps(content)}"

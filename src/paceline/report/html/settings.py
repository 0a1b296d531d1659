"""The settings of a campaign on its page: hosts, checks, labels, the study, the method."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.explanation import Explanation
from paceline.measurements.run import Check, Run
from paceline.report.html.markup import Markup, element, fragment, html_table, scrollable
from paceline.report.tables import Table, make_table
from paceline.units import BYTES

__all__ = ["hosts_table", "settings_section", "threads_words"]


def settings_section(explanation: Explanation) -> Markup:
    """All information that is needed to repeat the study."""
    runs = [run for case in explanation.cases for run in case.evidence.launches.runs]
    labels = sorted({label for run in runs for label in run.labels})
    notes = fragment(element("h3", "Labels of these runs"), element("ul", *(element("li", label) for label in labels)))
    study = fragment(element("h3", "The study"), element("pre", explanation.text))
    known = [run for run in runs if run.machine.memory_bytes]  # an imported run does not contain its hosts
    return fragment(
        scrollable(html_table(hosts_table(known)), "Hosts") if known else None,
        _checks(runs),
        notes if labels else None,
        study if explanation.text else None,
        element("h3", "How this was measured"),
        element("p", _method(runs)),
    )


def hosts_table(runs: Sequence[Run]) -> Table:
    """One row for each distinct host: processor, cores, memory, threads of the ranks, software."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        machine = run.machine
        key = (machine.host, machine.cpu, machine.cores, machine.memory_bytes, machine.kernel)
        groups.setdefault(key, []).append(run)
    columns = ["host", "processor", ">cores", ">memory", "ranks x threads", "system", "software"]
    return make_table(columns, [_host(group) for group in groups.values()])


def _host(runs: Sequence[Run]) -> list[object]:
    item = runs[0].machine
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.machine.versions.items()})
    return [
        item.host,
        item.cpu,
        item.cores,
        BYTES.format(float(item.memory_bytes)),
        threads_words(runs),
        f"{item.os}, kernel {item.kernel}",
        ", ".join([f"Python {item.python}", f"Paceline {item.paceline}", *versions]),
    ]


def threads_words(runs: Sequence[Run]) -> str:
    """Ranks and the compute threads of each, such as `1 x 2, 2 x 1`; marked where they exceed the cores of a host."""
    pairs = sorted({(run.ranks, run.machine.threads) for run in runs if run.machine.threads})
    cores = min((run.machine.cores for run in runs), default=1)
    local = all(run.cluster == "local" for run in runs)
    crowded = [f"{ranks} x {threads}" for ranks, threads in pairs if local and ranks * (threads or 1) > cores]
    more = f" (more threads than cores: {', '.join(crowded)})" if crowded else ""
    return ", ".join(f"{ranks} x {threads}" for ranks, threads in pairs) + more


def _checks(runs: list[Run]) -> Markup | None:
    failed: dict[str, Check] = {}
    for check in (check for run in runs for check in run.machine.checks if check.status != "ok"):
        failed.setdefault(check.name, check)
    rows = [[check.name, check.status, check.saw, check.expected, check.fix] for check in failed.values()]
    title = "Preflight checks that did not pass"
    table = make_table(["check", "status", "saw", "expected", "fix"], rows, title=title)
    return scrollable(html_table(table), "Preflight") if rows else None


def _method(runs: list[Run]) -> str:
    if runs and all(run.is_observed for run in runs):
        return _observed_method(runs[0])
    good = [run for run in runs if run.outcome == "ok"]
    dropped = [run.warmup.get("clean", 0) for run in good]
    drifted = sum(run.drifted for run in runs)
    warm = f"{min(dropped)} to {max(dropped)} steps of each launch were dropped as warm-up. " if dropped else ""
    return (
        f"{len(runs)} launches, {len(runs) - len(good)} of them failed. {warm}Throughput is the median over launches "
        "of all samples over the elapsed time of the slowest rank, with the t interval of its logarithm; a step is as "
        "long as its slowest rank. Phases are "
        "differences between passes that each add one part of the step. "
        f"The machine's own speed was off its median by more than the asked width before {drifted} launches; "
        "such launches are left out unless they are the most, or fewer than three would remain."
    )


def _observed_method(run: Run) -> str:
    files = ", ".join(str(name) for name in run.facts.get("files", ())[:8])
    if run.launcher == "import":
        how = f"Imported from {files or 'a file'} ({run.facts.get('source', 'unknown')})."
    else:
        how = f"Watched while it trained; the first {run.warmup.get('clean', 0)} steps were dropped as warm-up."
    return (
        f"{how} Throughput is all samples over the elapsed time of the slowest rank; a step is as long as its slowest "
        "rank. Phases are exposed seconds: what compute hides does not count, and “other” is what no phase covers."
    )

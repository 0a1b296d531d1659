"""Imported records as text: time of each rank's steps, slow ranks, hanging ranks, bandwidth of a link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.report.terminal import print_rows, say
from paceline.report.terminal.watched import advice_for, replay_lines, title_of, verdict_document
from paceline.units import BANDWIDTH, BYTES, SECONDS, format_count, format_share

if TYPE_CHECKING:
    from paceline.explain.imports import Imported
    from paceline.measurements.foreign.logs import TrainingLog
    from paceline.measurements.foreign.recorder import Hang
    from paceline.measurements.trace.job import TracedJob
    from paceline.model.links import FabricVerdict, LinkVerdict

__all__ = ["fabric_document", "imported_document", "link_document", "show_fabric", "show_imported", "show_links"]

SHOWN_RANKS = 32
RANK_COLUMNS = (">rank", ">step", ">compute", ">communication", ">overlapped", ">exposed", ">input", ">idle")


def show_imported(imported: Imported) -> None:
    """The analysis of an import, and the next command."""
    if imported.job is not None:
        _show_job(imported)
    if imported.judgement is not None:
        say(*(f"{title_of(cause)}; do: {advice_for(cause)}" for cause in imported.judgement.causes))
    if imported.replay is not None:
        say(*replay_lines(imported.replay.document))
    if imported.log is not None:
        _show_log(imported.log, imported.name)
    if imported.kind == "flight-recorder":
        _show_hangs(imported)
    if imported.tests:
        _show_tests(imported)
    if imported.campaign is not None:
        say(f"stored as {imported.campaign}", f"next: paceline explain {imported.name}")


def _show_job(imported: Imported) -> None:
    job = imported.job
    assert job is not None
    rows = [[str(row["rank"]), *(SECONDS.format(row[name]) for name in ("step_s", "compute_s", "communication_s")),
             *(f"{SECONDS.format(row[name])} ({format_share(row[name] / row['step_s'])})"
               for name in ("overlap_s", "exposed_s", "input_s", "idle_s"))] for row in _ranks(job)]  # fmt: skip
    ranks = format_count(len(job.ranks), "rank")
    title = f"{imported.name}: {ranks}, {len(job.steps)} steps, {job.format}; medians over steps"
    print_rows(title, RANK_COLUMNS, rows[:SHOWN_RANKS])
    if len(rows) > SHOWN_RANKS:
        say(f"... {len(rows) - SHOWN_RANKS} more ranks (--json has all)")
    say(*(f"note: {note}" for note in job.notes))


def _ranks(job: TracedJob) -> list[dict[str, Any]]:
    """Medians over steps, rank by rank."""
    rows = []
    for rank in job.ranks:
        steps = [one for one in job.shares if one.rank == rank]
        phases = sorted({phase for one in steps for phase in one.exposed})
        rows.append({
            "rank": rank,
            "step_s": median(one.seconds for one in steps),
            "compute_s": median(one.compute_s for one in steps),
            "communication_s": median(one.communication_s for one in steps),
            "overlap_s": median(one.overlap_s for one in steps),
            "exposed_s": median(one.exposed_s for one in steps),
            "input_s": median(one.exposed.get("io", 0.0) + one.exposed.get("h2d", 0.0) for one in steps),
            "idle_s": median(one.idle_s for one in steps),
            "phases": {phase: median(one.exposed.get(phase, 0.0) for one in steps) for phase in phases},
        })  # fmt: skip
    return rows


def _show_log(log: TrainingLog, name: str) -> None:
    seconds = [step.seconds for step in log.steps if step.seconds]
    say(f"{name}: {len(log.steps)} timed steps of {log.form}, median step {SECONDS.format(median(seconds))}")
    tokens = [step.tokens_per_s for step in log.steps if step.tokens_per_s]
    shares = [step.mfu for step in log.steps if step.mfu is not None]
    say(*([f"{median(tokens):,.0f} tokens/s per device"] if tokens else []),
        *([f"MFU {format_share(median(shares))}"] if shares else []), *log.notes)  # fmt: skip


def _show_hangs(imported: Imported) -> None:
    if not imported.hangs:
        say(f"{imported.files} dumps: every collective that was begun was completed or is under way on all ranks")
    for hang in imported.hangs:
        say(*_hang_lines(hang))


def _hang_lines(hang: Hang) -> list[str]:
    what = f"{hang.name} {hang.number} of group {hang.group}"
    lines = [f"hang in {what}: ranks {_listed(hang.waiting)} wait"]
    lines += [f"  never called by rank {r}; its last: {hang.last[r] or 'nothing recorded'}" for r in hang.missing[:16]]
    lines += [f"  rank {rank} called {other} instead" for rank, other in list(hang.other.items())[:16]]
    lines += [f"  no dump of ranks {_listed(hang.no_dump)}: they may have died"] if hang.no_dump else []
    lines += [f"  waited for in {hang.place}"] if hang.place else []
    if hang.culprits:
        return [*lines, f"  who hangs: rank {_listed(hang.culprits)}"]
    if hang.no_dump:
        return [*lines, "  the hanging rank is not known: give the dumps of all ranks"]
    blocked = bool(hang.missing or hang.other)
    why = "the missing ranks wait in another collective" if blocked else "all ranks entered it: suspect the link"
    return [*lines, f"  {why}"]


def _listed(ranks: Sequence[int], most: int = 16) -> str:
    return ", ".join(map(str, ranks[:most])) + (" ..." if len(ranks) > most else "")


def _show_tests(imported: Imported) -> None:
    rows = [(one.operation, one.ranks, len(one.hosts) or "", BYTES.format(row.size_bytes), SECONDS.format(row.seconds),
             BANDWIDTH.format(row.bus_bandwidth)) for one in imported.tests for row in one.sizes]  # fmt: skip
    print_rows(imported.kind, ("collective", ">ranks", ">hosts", ">size", ">time", ">bus bandwidth"), rows)
    if imported.late is not None:
        late = imported.late
        say(f"rank {late.rank} of group {late.group} ({late.host or 'host unknown'}) enters last in "
            f"{format_share(late.share)} of {late.collectives:,} collectives; the others wait for it "
            f"{SECONDS.format(late.wait_s)} each time: suspect the rank, not the link")  # fmt: skip
    files = " ".join(f"--nccl-tests {one.path}" for one in imported.tests)
    again = f"paceline calibrate {files}" if imported.kind == "nccl-tests" else "paceline calibrate"
    say("stored as sweeps of the cluster", f"next: {again}")


def show_links(verdicts: Sequence[LinkVerdict], output: Path) -> None:
    """Measured bus bandwidth and that of the link, for each test."""
    rows = [(v.status, v.test.operation, v.test.ranks, v.link, BANDWIDTH.format(v.test.peak),
             BANDWIDTH.format(v.stated), format_share(v.share), format_share(v.least)) for v in verdicts]  # fmt: skip
    columns = ("", "collective", ">ranks", "link", ">bus bandwidth", ">stated", ">share", ">expected at least")
    if rows:
        print_rows("", columns, rows)
    say(*(v.advice for v in verdicts if v.advice), f"wrote {output}")


def link_document(verdicts: Sequence[LinkVerdict], output: Path) -> dict[str, Any]:
    """The verdicts as plain data, and the file of the calibration."""
    links = [{"file": v.test.path, "operation": v.test.operation, "ranks": v.test.ranks, "hosts": list(v.test.hosts),
             "link": v.link, "bus_bandwidth": v.test.peak, "stated": v.stated, "share": v.share, "least": v.least,
             "status": v.status, "advice": v.advice} for v in verdicts]  # fmt: skip
    return {"output": str(output), "links": links}


def show_fabric(verdict: FabricVerdict, *, slurm: bool) -> None:
    """The collective over all hosts, each host with its best partner, and which hosts to exclude."""
    whole = verdict.whole
    peak, stated = BANDWIDTH.format(whole.test.peak), BANDWIDTH.format(whole.stated)
    say(f"{verdict.status}: {whole.test.operation} of {whole.test.ranks} ranks on {len(whole.test.hosts)} hosts by "
        f"{whole.test.path} reaches {peak} of {stated} ({whole.link}), {format_share(whole.share)}; expected at least "
        f"{format_share(whole.least)}")  # fmt: skip
    rows = [(h.status, h.host, h.partner, BANDWIDTH.format(h.bandwidth), BANDWIDTH.format(h.stated),
             format_share(h.share), format_share(h.least)) for h in verdict.hosts]  # fmt: skip
    columns = ("", "host", "best partner", ">bandwidth", ">stated", ">share", ">expected at least")
    print_rows("each host with its best partner, in the slower direction", columns, rows)
    left = ",".join(host.host for host in verdict.hosts if host.status == "PASS")
    exclusion = f"--exclude={','.join(verdict.exclude)}" if slurm else f"--hosts {left}"
    say(*([verdict.advice] if verdict.advice else []), *([f"exclude: {exclusion}"] if verdict.exclude else []))


def fabric_document(verdict: FabricVerdict) -> dict[str, Any]:
    """The verdict as plain data."""
    hosts = [{**vars(host), "share": host.share, "status": host.status} for host in verdict.hosts]
    whole = verdict.whole
    link = {"transport": whole.test.path, "operation": whole.test.operation, "ranks": whole.test.ranks,
            "link": whole.link, "bus_bandwidth": whole.test.peak, "stated": whole.stated, "share": whole.share,
            "least": whole.least, "status": whole.status}  # fmt: skip
    return {"ok": verdict.status == "PASS", "status": verdict.status, "collective": link, "hosts": hosts,
            "exclude": list(verdict.exclude), "advice": verdict.advice}  # fmt: skip


def imported_document(imported: Imported) -> dict[str, Any]:
    """Everything that was found, as plain data in SI units."""
    document: dict[str, Any] = {"kind": imported.kind, "files": imported.files, "name": imported.name,
                                "campaign": imported.campaign}  # fmt: skip
    if imported.job is not None:
        steps = [{"rank": one.rank, "step": one.step, "seconds": one.seconds, "compute_s": one.compute_s,
                  "communication_s": one.communication_s, "overlap_s": one.overlap_s, "exposed_s": one.exposed_s,
                  "idle_s": one.idle_s, "phases": one.exposed} for one in imported.job.shares]  # fmt: skip
        document |= {"format": imported.job.format, "notes": list(imported.job.notes), "ranks": _ranks(imported.job),
                     "steps": steps}  # fmt: skip
    if imported.judgement is not None:
        document["judgement"] = verdict_document(imported.judgement, str(imported.campaign), "")
    if imported.replay is not None:
        document["replay"] = imported.replay.document
    if imported.log is not None:
        document["log"] = {"form": imported.log.form, "devices": imported.log.ranks, "sequence": imported.log.sequence,
                           "notes": list(imported.log.notes),
                           "steps": [vars(step) for step in imported.log.steps]}  # fmt: skip
    if imported.kind == "flight-recorder":
        document |= {"dumps": list(imported.dumps), "hangs": [vars(hang) for hang in imported.hangs]}
    if imported.tests:
        document["tests"] = [{**vars(one), "sizes": [vars(row) for row in one.sizes]} for one in imported.tests]
        document["late"] = vars(imported.late) if imported.late else None
    return document

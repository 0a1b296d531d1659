"""Terminal output of catalog, frameworks, checks, sweeps, calibrations, clusters, validation and trainings: tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.files import printable
from paceline.measurements.run import Check, RunData
from paceline.report.terminal import print_rows, say
from paceline.units import BANDWIDTH, BYTES, SECONDS, format_count, format_share

if TYPE_CHECKING:  # Each verb imports only the modules that it shows.
    from paceline.bench.collectives import CollectiveTime
    from paceline.bench.environments import CacheFolder
    from paceline.bench.verify import Verification
    from paceline.measurements.repair import Inspection, Repair
    from paceline.model.calibrate import Calibrated
    from paceline.model.transformer.shape import TransformerMemory
    from paceline.model.validation.report import Row

__all__ = [
    "show_answer",
    "show_calibrated",
    "show_catalog_entry",
    "show_checks",
    "show_inspection",
    "show_network",
    "show_networks",
    "show_repairs",
    "show_running",
    "show_sweep",
    "show_transformer_memory",
    "show_validation",
    "verification_line",
]

COSTS = (">parameters", ">multiply-adds", ">activations", ">gradients")
RUNNING = (
    "rank",
    ">step",
    ">steps/s",
    ">samples/s",
    ">share",
    ">compute",
    ">input wait",
    ">exchange",
    ">stale",
    ">ranks",
)
SILENT = 10.0
"""Seconds without a line after which a rank is marked."""


def show_catalog_entry(entry: dict[str, Any]) -> None:
    """One device, link, cluster or framework, each figure with its source."""
    title = f"{entry['name']}: {entry.get('title') or entry['section']}"
    if "figures" in entry:
        rows = [(item["figure"], item["value"], item["source"], item["note"]) for item in entry["figures"]]
        print_rows(title, ("figure", ">value", "source", "note"), rows)
    elif "hosts" in entry:
        print_rows(title, ("host", "devices", "inside", "link", ">ports"), [_host(host) for host in entry["hosts"]])
        say(*(f"source: {source}" for source in [entry.get("source")] if source))
    else:
        modes = entry["mode"].items()
        given = [(mode, *item) for mode, policy in modes for item in policy.items() if item[1] not in (None, "")]
        print_rows(title, ("mode", "field", "default"), given)


def _host(host: dict[str, Any]) -> tuple[object, ...]:
    devices = ", ".join(f"{item['count']} x {item['name']}" for item in host["devices"])
    return host["name"], devices, host["inside"], host["link"], host["nics"]


def show_networks(networks: Sequence[dict[str, Any]]) -> None:
    """Networks with their input and total costs."""
    rows = []
    for item in networks:
        size = [value for key, value in item["input"].items() if key not in ("kind", "vocabulary")]
        rows.append((item["name"], item["input"]["kind"], _shape(size), *_costs(item)))
    print_rows("", ("network", "input", "", *COSTS), rows)


def show_network(network: dict[str, Any], title: str) -> None:
    """The layers of one network and their costs; the last row is the total."""
    layers = [*network["layers"], {**network, "name": "total", "kind": "", "shape": []}]
    rows = [(row["name"], row["kind"], _shape(row["shape"]), *_costs(row)) for row in layers]
    print_rows(title, ("layer", "kind", "shape", *COSTS), rows)


def _costs(item: dict[str, Any]) -> tuple[str, ...]:
    sizes = (BYTES.format(item[key]) for key in ("activation_bytes", "gradient_bytes"))
    return f"{item['parameters']:,}", f"{item['multiply_adds']:,}", *sizes


def _shape(sizes: list[int]) -> str:
    return " x ".join(str(size) for size in sizes)


def show_checks(checks: Sequence[Check]) -> None:
    """Observed and expected value of each check, then how to fix failed checks."""
    print_rows("", ["", "check", "saw", "expected"], [(c.status, c.name, c.saw, c.expected) for c in checks])
    say(*(f"fix {check.name}: {check.fix}" for check in checks if check.fix))


def show_caches(folders: Sequence[CacheFolder]) -> None:
    """Show the folders of caches, their sizes and contents."""
    rows = [(f.name, BYTES.format(float(f.size_bytes)), f"{f.num_files:,}", f.holds) for f in folders]
    title = f"Caches in {folders[0].path.parent}; `paceline clean NAME` clears one"
    print_rows(title, ["cache", ">size", ">files", "holds"], rows)


def show_answer(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows of a query."""
    print_rows("", columns, [[_value(value) for value in row.values()] for row in rows])


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else ("" if value is None else str(value))


def show_sweep(data: RunData, times: Sequence[CollectiveTime]) -> None:
    """One sweep of collectives, or why it failed."""
    run = data.run
    if run.failure:
        last = run.failure.log_tail.strip().splitlines()[-1:]
        say("\n  ".join([f"failed: {run.failure.message} (stored as {run.id})", *last]))
        return
    rows = [
        (
            item.collective,
            BYTES.format(item.size_bytes),
            SECONDS.format(item.seconds),
            BANDWIDTH.format(item.bus_bandwidth),
        )
        for item in times
    ]
    title = f"{run.framework} on {run.cluster}, {run.ranks} ranks"
    print_rows(title, ["collective", ">size", ">time", ">bus bandwidth"], rows)
    say(f"stored as {run.id}")


def verification_line(proof: Verification) -> str:
    """One comparison of a framework with the reference."""
    head = f"{proof.status:<9} {proof.framework:<24} {proof.network:<12} {format_count(proof.ranks, 'rank'):<8}"
    if proof.error is not None and proof.status == "equal":
        return f"{head} worst {proof.error:.1e}"
    return f"{head} {proof.reason}"


def show_calibrated(calibrated: Calibrated) -> None:
    """Fitted collectives, fitted runs, and what being distributed costs."""
    calibration = calibrated.calibration
    fits = [
        (fit.operation, fit.ranks, fit.form, SECONDS.format(fit.startup),
         f"{1e-9 / fit.per_byte:.2f}" if fit.per_byte else "", format_share(fit.spread))
        for fit in calibration.collectives
    ]  # fmt: skip
    print_rows("collectives", ["collective", ">ranks", "form", ">start-up", ">GB/s", ">spread"], fits)
    judged = [
        (one.label, one.ranks, SECONDS.format(one.measured_s), SECONDS.format(one.predicted_s),
         format_share(one.predicted_s / one.measured_s - 1))
        for one in calibrated.fitted
    ]  # fmt: skip
    if judged:
        print_rows("\nruns that were fitted", ["case", ">ranks", ">measured", ">fitted", ">off"], judged)
    else:
        say("\nno run on several ranks beside its profile: only collectives were fitted")
    fixed, slow = calibration.fixed_per_gradient.value, calibration.slowdown.value
    say(f"\nfixed {SECONDS.format(fixed)} per gradient, slowdown {format_share(slow)} of hidden communication")
    say(f"crowding {format_share(calibration.crowding)} for each further rank of a host")
    if calibration.overlap_rate < 1:
        say(f"beside compute an exchange runs at {format_share(calibration.overlap_rate)} of its speed")
    if calibration.copy_per_byte is not None:
        say(f"copies in memory {1e-9 / calibration.copy_per_byte:.1f} GB/s")


def show_transformer_memory(use: TransformerMemory, memory: str) -> None:
    """Bytes of the fullest device by part."""
    rows = [(name, BYTES.format(size)) for name, size in {**vars(use), "total": use.total}.items()]
    print_rows(f"\nmemory of the fullest device, of {memory}", ["part", ">bytes"], rows)


def show_validation(rows: Sequence[Row]) -> None:
    """Errors of predictions by situation, distance and campaign, with simple laws as baselines."""
    laws = list(rows[0].laws)
    columns = ["judged by", "", ">points", ">mean", ">median", ">bias", ">in 50 %", ">in 90 %", ">score",
               *(f">{law}" for law in laws), ">worst"]  # fmt: skip
    cells = [_judged(row, laws) for row in rows]
    print_rows("predicted against published, the judged campaign left out", columns, cells)


def _judged(row: Row, laws: Sequence[str]) -> list[object]:
    optional = [row.bias, row.covered_50, row.covered_90]
    shares = ["" if share is None else format_share(share) for share in optional]
    score = "" if row.score is None else f"{row.score:.2f}"
    simple = [format_share(row.laws[law]) if law in row.laws else "" for law in laws]
    errors = [format_share(value) for value in (row.mean_error, row.median_error)]
    return [row.group, row.name, row.points, *errors, *shares, score, *simple, format_share(row.worst_error)]


def show_inspection(inspection: Inspection, store: Path) -> None:
    """Contents of a store, and every damaged file."""
    named = [("damaged", item) for item in inspection.damaged] + [("newer", item) for item in inspection.newer]
    bad = [(kind, *map(printable, (item.run, item.file, item.reason))) for kind, item in named]
    if bad:
        print_rows("", ("", "run or campaign", "file", "what is wrong"), bad)
    sound = f"{len(inspection.runs)} sound runs, {len(inspection.campaigns)} sound campaigns"
    say(f"{store}: {sound}, {len(bad)} that cannot be read")
    if inspection.unverified:
        say(f"{len(inspection.unverified)} without checksums, so not verified; `paceline store repair` adds checksums")


def show_repairs(done: Sequence[Repair], store: Path) -> None:
    """Result of a repair."""
    if done:
        print_rows(
            "",
            ("run or campaign", "done", "where"),
            [[printable(text) for text in vars(item).values()] for item in done],
        )
    say(f"{store}: {len(done)} repairs" if done else f"{store}: nothing to repair")


def show_running(lines: Sequence[dict[str, Any]]) -> None:
    """One row per rank; for a silent rank the time since its last line."""
    rows = []
    for line in lines:
        silent = time.time() - line["time"]
        name = f"{line['group']} {line['rank']}" + (f", silent for {silent:.0f} s" if silent > SILENT else "")
        rates = [f"{line['steps_per_second']:.2f}", f"{line['samples_per_second']:,.1f}", line["share"]]
        spent = [SECONDS.format(line[f"{part}_seconds"]) for part in ("compute", "input", "exchange")]
        rows.append([name, line["step"], *rates, *spent, line["staleness"], line["ranks"]])
    print_rows("", RUNNING, rows)

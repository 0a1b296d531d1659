"""Holistic Trace Analysis on a folder of traces; prints seconds of compute, communication and overlap of each rank.

Run with an interpreter that has HolisticTraceAnalysis: hta_breakdown.py FOLDER
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Analyse, and print one JSON document."""
    paths = {int(path.stem.removeprefix("rank")): str(path) for path in Path(sys.argv[1]).glob("rank*.json")}
    with contextlib.redirect_stdout(sys.stderr):
        analysis = TraceAnalysis(trace_files=paths, trace_dir="")
        split = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"] / 100
    unit = next(1e-9 if "(ns)" in name else 1e-6 for name in split.columns if name.startswith("compute_time("))
    word = "ns" if unit == 1e-9 else "us"
    found = {}
    for rank in split.index:
        exposed = float(split.loc[rank, f"non_compute_time({word})"]) * unit
        communication = exposed / (1 - float(overlap[rank]))
        compute = float(split.loc[rank, f"compute_time({word})"]) * unit
        found[int(rank)] = {"compute": compute, "communication": communication, "overlap": communication - exposed}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

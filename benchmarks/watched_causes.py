"""Sixteen causes in a user's DDP script on two ranks, each run once, watched by Paceline and TraceML in the same run.

    .venv/bin/python benchmarks/watched_causes.py                  all cases
    .venv/bin/python benchmarks/watched_causes.py --only link      cases whose name contains this

Paceline is right if its first cause is the planted one: its kind, and where they are planted its rank, phase, reason,
distance and step of onset (within 3 steps); of the control, if it names nothing. TraceML is right if its primary
diagnosis points at the place of the cause, in its own words: residual time counts for work in the loop and for garbage
collection, a straggler counts if the rank is right. The script is `lib/user_script.py`, with TraceML's two calls in it;
ranks have a core each and one thread. Slow links are a shaped loopback device in a network namespace: needs root, and
the environment of `make trainers`. Asked: Paceline right in 15 of 16, and silent on the control.
What --store already holds is not run again, so that a long run may be done in parts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.pythons import trainers_python
from lib.result import Figure, parser_of, publish
from lib.watched_cases import CASES, Watched

SCRIPT = Path(__file__).parent / "lib" / "user_script.py"
NEAR = 3
"""Steps between the planted onset and the one that is named."""
NEEDED = 15


def main() -> int:
    """Run what is missing, judge, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--store", type=Path, default=Path("results/watched_causes"))
    parser.add_argument("--anew", action="store_true", help="run again what the store holds")
    options = parser.parse_args()
    options.store.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if options.only in case.name]
    rows = []
    for case in chosen:
        kept = options.store / f"{case.name.replace(' ', '-').replace(':', '')}.json"
        if options.anew or not kept.exists():
            kept.write_text(json.dumps(run(case, options.steps, options.store), indent=1), encoding="utf-8")
        rows.append(row_of(case, json.loads(kept.read_text(encoding="utf-8"))))
        print("{case:30} {ours:>5} {peer:>5}  {said}\n{peer_said:>60}".format(**rows[-1]), flush=True)
    ours, peer = (sum(row[tool] == "yes" for row in rows) for tool in ("ours", "peer"))
    alarms = [row for row in rows if row["case"].startswith("control")]
    figures = [
        Figure(f"of {len(chosen)} causes, Paceline is right first", ours),
        Figure(f"of {len(chosen)} causes, TraceML 0.5.0 is right first", peer),
        Figure("false alarms of Paceline on the control", sum(row["ours"] == "no" for row in alarms)),
        Figure("false alarms of TraceML on the control", sum(row["peer"] == "no" for row in alarms)),
    ]
    return publish(options, figures, turns=rows, passed=ours >= min(NEEDED, len(chosen)) and figures[2].value == 0)


def run(case: Watched, steps: int, store: Path) -> dict[str, Any]:
    """Both verdicts on one run."""
    python = trainers_python()
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    traceml = [str(Path(python).parent / "traceml"), "run", str(SCRIPT), "--nproc-per-node", "2", "--run-name", name]
    folder = (store / "traceml").absolute()
    command = [python, "-m", "paceline", "watch", "--name", name, "--json", "--"]
    command += [*traceml, "--logs-dir", str(folder), "--args", case.name, str(steps)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "PACELINE_STORE": str(store.absolute())}
    done = subprocess.run([*_shaped(case.rate), *command], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr[-2000:]}")
    summary = json.loads((folder / name / "final_summary.json").read_text(encoding="utf-8"))
    return {"paceline": json.loads(done.stdout), "traceml": summary["primary_diagnosis"]}


def _shaped(rate: str) -> list[str]:
    """Runs what follows with a loopback device of this rate, in a network namespace of its own."""
    shape = f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 1s && " if rate else ""
    return ["unshare", "-n", "sh", "-c", f'ip link set lo up && {shape}exec "$0" "$@"']


def row_of(case: Watched, found: dict[str, Any]) -> dict[str, Any]:
    """What both said, and whether that was right."""
    causes, diagnosis = found["paceline"]["causes"], found["traceml"]
    first = causes[0] if causes else {}
    right = all(first.get(key) == value for key, value in case.named.items()) and bool(case.named) == bool(causes)
    if case.onset is not None:
        right = right and abs((first.get("since") or 0) - case.onset) <= NEAR
    peer = diagnosis["kind"] in case.peer and case.rank in (None, culprit_of(diagnosis))
    return {
        "case": case.name, "ours": "yes" if right else "no", "peer": "yes" if peer else "no",
        "said": first.get("title", "nothing lengthens the steps"), "since": first.get("since"),
        "peer_said": f"{diagnosis['kind']}: {diagnosis.get('summary', '')}",
        "others": [cause["title"] for cause in causes[1:]],
    }  # fmt: skip


def culprit_of(diagnosis: dict[str, Any]) -> int | None:
    """The rank that TraceML calls the culprit."""
    rank = (diagnosis.get("evidence") or {}).get("worst", {}).get("rank")
    return None if rank is None else int(rank)


if __name__ == "__main__":
    sys.exit(main())

"""A shard of the syncer that ends is started again, but not for ever."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from paceline.bench.environments import worker_path
from paceline.runtime.syncer.journal import DAMAGED, SHARD_RESTARTS

KEEP = """
import json, sys
from pathlib import Path
from paceline.runtime.auto import regroup

regroup.FULL_DISK_PAUSE, starts = 0.0, []
for number, end in enumerate(sys.argv[2:]):
    folder = Path(sys.argv[1]) / str(number)
    folder.mkdir()
    # Whatever the keeper does, the process ends by itself at last, so that a keeper without a bound ends, too.
    script = f'echo >> starts; [ $(wc -l < starts) -gt 60 ] && exit 0; {end}'
    regroup._keep(["/bin/sh", "-c", f'cd "{folder}"; {script}'], folder, b"the secret of this job")
    starts.append(len((folder / "starts").read_text().splitlines()))
print(json.dumps(starts))
"""


def test_a_shard_that_ends_again_and_again_is_given_up(torch_python: Path, tmp_path: Path) -> None:
    ends = ("kill -9 $$", "exit 1", "exit 0", f"exit {DAMAGED}")
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run([torch_python, "-c", KEEP, tmp_path, *ends], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, cannot_write, all_left, damaged = json.loads(done.stdout)
    assert killed == cannot_write == 1 + SHARD_RESTARTS
    assert all_left == damaged == 1, "there is nothing to come back to"

"""One rank of a job that suffers faults: trains until a file says stop, and writes a line after every step."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
from lib.leases import syncer_of

SAMPLES, BATCH, PER_SAMPLE = 600, 60, 0.002
EPOCHS = 10**6


def worker(folder: Path) -> None:
    """Train, write, watch for orders in the folder."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from paceline.runtime import Settings, Timeouts, join
    from paceline.runtime.emulate import Emulated, emulate

    logging.basicConfig(format="%(relativeCreated)d %(message)s", level=logging.INFO)
    torch.set_num_threads(1)
    name = os.environ["WORKER"]
    torch.manual_seed(sum(name.encode()))
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    device = Emulated(per_sample=PER_SAMPLE)
    emulate(model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.randn(SAMPLES, 20, generator=torch.Generator().manual_seed(1))
    settings = Settings(timeouts=Timeouts(heartbeat_interval=0.1, heartbeat_timeout=1.0, settle=0.05))
    _die_as_ordered(folder, name)
    with (folder / f"{name}.steps").open("a") as lines:
        lines.write("\n")  # whoever was killed may have left half a line
        _write(lines, {"joins": time.monotonic()})
        with join(model, optimizer, TensorDataset(data), global_batch=BATCH, settings=settings) as pace:
            for batch in pace.batches(epochs=EPOCHS):
                step, epoch, before, lease = pace.position.step, pace.position.epoch, _hash(model), _lease(pace)
                pace.step(model(batch.inputs).square().mean())
                if pace.position.step == step + 1:
                    record = {"step": step + 1, "epoch": epoch, "samples": batch.indices.tolist(), "from": before}
                    _write(lines, record | {"lease": lease} | _state(pace, model))
                device.speed = 0.2 if (folder / f"slow-{name}").exists() else 1.0
                if (folder / "stop").exists():
                    break
        _write(lines, {"ended": time.monotonic()})
    os._exit(0)


def _state(pace: Any, model: Any) -> dict[str, Any]:
    """`size` is 0 for a step that others finished and this rank took over from them."""
    last, syncer = pace.records[-1] if pace.records else None, syncer_of(pace)
    return {
        "size": len(last.shares) if last is not None and last.step == pace.position.step else 0,
        "at": time.monotonic(),
        "noticed": pace.noticed[-6:],
        "hash": _hash(model),
        "versions": list(syncer.versions) if syncer else [],
    }


def _lease(pace: Any) -> list[int]:
    """The stretch of samples that this group works on, if there are several groups."""
    syncer = syncer_of(pace)
    return [syncer.sequence, syncer.epoch, syncer.begin, syncer.end] if syncer else []


def _hash(model: Any) -> str:
    content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(content).hexdigest()[:16]


def _write(lines: Any, record: dict[str, Any]) -> None:
    lines.write(json.dumps(record) + "\n")
    lines.flush()


def _die_as_ordered(folder: Path, name: str) -> None:
    """SIGKILL of this process within a collective, when the folder says so: the moment cannot be met from outside."""
    from paceline.runtime.group.wire import Wire

    def watched(operation: str, ordered: str) -> None:
        plain = getattr(Wire, operation)

        def called(wire: Wire, *given: Any) -> Any:
            order = folder / f"die-in-{ordered}-{name}"
            if order.exists():
                order.unlink()
                (folder / f"died-{name}").write_text(str(time.monotonic()))
                threading.Timer(random.uniform(0, 0.002), os.kill, (os.getpid(), signal.SIGKILL)).start()
            return plain(wire, *given)

        setattr(Wire, operation, called)

    watched("all_reduce", "all_reduce")
    watched("all_reduce_promptly", "all_reduce")
    watched("broadcast", "broadcast")


if __name__ == "__main__":
    worker(Path(sys.argv[1]))

"""One rank of a job that suffers faults: trains a transformer until a file says stop, and writes a line per step.

24 layers with AdamW, so that a report of the state is as long as that of a real model; narrow, so that a step of three
ranks on two cores takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from lib.leases import syncer_of

SAMPLES, BATCH = 240, 24
EPOCHS = 10**6
LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = 24, 16, 2, 8, 32
HEARTBEAT_TIMEOUT = 1.0
LOOK = 0.05
"""Seconds between two looks at the clock."""
SLOWER = 5
"""Times by which a slow device is slower."""


def transformer(seed: int) -> Any:
    """Predicts the next of some tokens; every rank begins with other parameters."""
    import torch
    from torch import nn

    torch.manual_seed(seed)

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, VOCABULARY)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS - 1))

        def forward(self, tokens: Any) -> Any:
            found = self.head(self.layers(self.embedding(tokens[:, :-1]), mask=self.mask, is_causal=True))
            return nn.functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())

    return torch, Transformer()


def worker(folder: Path) -> None:
    """Train, write, watch for orders in the folder."""
    name = os.environ["WORKER"]
    torch, model = transformer(seed=sum(name.encode()))
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    logging.basicConfig(format="%(relativeCreated)d %(message)s", level=logging.INFO)
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(1))
    _die_as_ordered(folder, name)
    lag = Lag(folder / f"{name}.slept")
    with (folder / f"{name}.steps").open("a") as lines:
        lines.write("\n")  # whoever was killed may have left half a line
        _write(lines, {"joins": time.monotonic()})
        with join(model, optimizer, TensorDataset(data), global_batch=BATCH, settings=_settings()) as pace:
            if syncer_of(pace) is None:
                threading.Thread(target=_end_as_ordered, args=(folder, pace), daemon=True).start()
            for batch in pace.batches(epochs=EPOCHS):
                step, epoch, before, lease = pace.position.step, pace.position.epoch, _hash(model), _lease(pace)
                began = time.perf_counter()
                loss = model(batch.inputs)
                _suffer(folder, name, time.perf_counter() - began)
                pace.backward(loss)  # not `step`, which leaves out ranks without a share: each rank writes each step
                pace.update()
                if pace.position.step == step + 1:
                    record = {"step": step + 1, "epoch": epoch, "samples": batch.indices.tolist(), "from": before}
                    _write(lines, record | {"lease": lease, "lag": lag.worst()} | _state(pace, model))
                if syncer_of(pace) is not None and (folder / "stop").exists():
                    break
        _write(lines, {"ended": time.monotonic(), "last": pace.position.step, "final": _hash(model)})
    os._exit(0)


def _settings() -> Any:
    """Failures are known early, and checkpoints are frequent where there are any."""
    from paceline.runtime import Settings, Timeouts

    timeouts = Timeouts(heartbeat_interval=0.1, heartbeat_timeout=HEARTBEAT_TIMEOUT, settle=0.05, hang=1.0)
    checkpoint = Path(os.environ["CHECKPOINT"]) if "CHECKPOINT" in os.environ else None
    return Settings(timeouts=timeouts, checkpoint=checkpoint, checkpoint_every=5)


def _suffer(folder: Path, name: str, forward: float) -> None:
    """A slow device, or user code that does not return, while an order says so."""
    if (folder / f"slow-{name}").exists():
        time.sleep((SLOWER - 1) * 3 * forward)
    stuck = folder / f"stuck-{name}"
    with contextlib.suppress(FileNotFoundError):
        while order := stuck.read_text():
            time.sleep(0.02 if order == "sleeps" else 0.0)


def _end_as_ordered(folder: Path, pace: Any) -> None:
    """A group alone is told its last step, and all its ranks end after that one, also those without a share of it."""
    from paceline.runtime.groups import Limits

    stop = folder / "stop"
    while not stop.exists() or not (text := stop.read_text()).endswith("\n"):
        time.sleep(0.02)
    pace._mode.begin(Limits(steps=int(text)))


class Lag:
    """How late a thread that sleeps, as those that send heartbeats do, wakes up: a busy machine, not a fault.

    What is longer than a heartbeat timeout is noted in a file, since a rank may wait for ever after it.
    """

    def __init__(self, notes: Path) -> None:
        self._worst, self._notes = 0.0, notes
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(LOOK)
            late = time.monotonic() - began - LOOK
            self._worst = max(self._worst, late)
            if late > HEARTBEAT_TIMEOUT:
                with self._notes.open("a") as file:
                    file.write(json.dumps({"slept": late, "at": time.monotonic()}) + "\n")

    def worst(self) -> float:
        """Since the last question."""
        worst, self._worst = self._worst, 0.0
        return worst


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
    """The lease of samples that this group works on, if there are several groups."""
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

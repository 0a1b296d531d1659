"""Checks of checkpoints in one process with torch; prints what each one found as JSON."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import resource
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import PacelineError
from paceline.runtime import Settings, checkpoint
from paceline.runtime import training as training_module
from paceline.runtime.checkpoint import load_checkpoint, save_checkpoint, write_tensors
from paceline.runtime.training import Training

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2)  # fmt: skip
Messages = list[str]


def training(path: Path, width: int = 3, every: int = 4) -> Training:
    """A small model with an optimizer that has a state."""
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    settings = Settings(checkpoint=path, checkpoint_every=every)
    made = Training(model, optimizer, settings, num_samples=10, global_batch=2)
    for _ in range(2):
        model(torch.randn(5, 4)).sum().backward()
        made.update()
    return made


def content(value: float = 1.0) -> dict[str, Any]:
    """Everything that a state may hold."""
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).t().to(dtype) for dtype in DTYPES}
    model = {**tensors, "scalar": torch.tensor(value), "empty": torch.empty(0, 3)}
    other = {"state": {0: {"step": torch.tensor(3.0)}, "x": [1, 2.5, None, True, "ü"]}, "inf": float("inf")}
    return {"identity": {"seed": 0}, "position": {"step": 1}, "mark": "m", "costs": {}, "state": [model, other]}


def same(one: Any, other: Any) -> bool:
    """Equal structure, equal bits."""
    if isinstance(one, torch.Tensor):
        raw = [item.contiguous().reshape(-1).view(torch.uint8) for item in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other) and type(one) is type(other)


def error_of(path: Path) -> str:
    """What loading says."""
    try:
        return f"loaded {load_checkpoint(path) is not None}"
    except PacelineError as error:
        return f"{type(error).__name__}: {error}"


def flip(path: Path, bit: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def round_trip(folder: Path, said: Messages) -> Any:
    """Whatever a state may hold comes back bit for bit."""
    save_checkpoint(folder / "a", content())
    return same(load_checkpoint(folder / "a"), content())


def synchronised(folder: Path, said: Messages) -> Any:
    """What is on disk, in order: its name, and whether the new checkpoint has its name by then."""
    path, seen = folder / "a", []
    save_checkpoint(path, content(1.0))
    old, fsync = path.stat().st_ino, os.fsync

    def noted(handle: int) -> None:
        seen.append([Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition(".")[0], path.stat().st_ino != old])
        fsync(handle)

    os.fsync = noted  # type: ignore[assignment]
    save_checkpoint(path, content(2.0))
    os.fsync = fsync
    return seen


def flips(folder: Path, said: Messages) -> Any:
    """Number of flipped bits that changed what was loaded without a word."""
    path, chance, missed = folder / "a", random.Random(0), 0
    save_checkpoint(path, content())
    sound = path.read_bytes()
    for _ in range(150):
        flip(path, chance.randrange(8 * len(sound)))
        if error_of(path).startswith("loaded") and not same(load_checkpoint(path), content()):
            missed += 1
        path.write_bytes(sound)
    return missed


def falls_back(folder: Path, said: Messages) -> Any:
    """The one before is taken, the damaged one is kept aside, and the one before survives the next save."""
    path = folder / "a"
    for value in (1.0, 2.0):
        save_checkpoint(path, content(value))
    flip(path, 8 * (path.stat().st_size - 1))
    loaded = load_checkpoint(path)
    aside = path.with_name("a.damaged").exists()
    save_checkpoint(path, content(3.0))
    before = load_checkpoint(path.with_name("a.before"))
    return [
        same(loaded, content(1.0)),
        aside,
        same(before, content(1.0)),
        same(load_checkpoint(path), content(3.0)),
        said,
    ]


def only_before(folder: Path, said: Messages) -> Any:
    """A crash between two renames leaves the one before alone."""
    save_checkpoint(folder / "a", content())
    (folder / "a").rename(folder / "a.before")
    return [same(load_checkpoint(folder / "a"), content()), load_checkpoint(folder / "b")]


def killed(folder: Path, said: Messages) -> Any:
    """What a process that was killed left half-written goes; what belongs to others stays."""
    gone, host = subprocess.Popen(["true"]), socket.gethostname()
    gone.wait()
    save_checkpoint(folder / "a", content())
    for name in (f"a.tmp-{host}-{gone.pid}-x", f"a.tmp-{host}-{os.getpid()}-x", f"b.tmp-{host}-{gone.pid}-x"):
        (folder / name).touch()
    load_checkpoint(folder / "a")
    return sorted(path.name.partition(host)[0] for path in folder.iterdir())


def name_taken(folder: Path, said: Messages) -> Any:
    """The damaged one cannot be set aside: it stays, and the one before it is taken all the same."""
    path = folder / "a"
    for value in (1.0, 2.0):
        save_checkpoint(path, content(value))
    flip(path, 8 * (path.stat().st_size - 1))
    (folder / "a.damaged").mkdir()
    return [same(load_checkpoint(path), content(1.0)), path.exists()]


def foreign(folder: Path, said: Messages) -> Any:
    """What each kind of other file is called."""
    torch.save({"model": torch.ones(2)}, folder / "torch.pt")
    with (folder / "plain.safetensors").open("wb") as file:
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        file.write(len(header).to_bytes(8, "little") + header + bytes(4))
    with (folder / "other.safetensors").open("wb") as file:
        write_tensors(file, {"w": torch.ones(1)}, {"note": "x"})
    note = {"schema": 1, "names": ["w"], "content": {"table": [["state", {"tensor": -1}]]}}
    with (folder / "index.safetensors").open("wb") as file:
        write_tensors(file, {"w": torch.ones(1)}, {"paceline": json.dumps(note)})
    _sealed(folder / "shape.safetensors", {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}})
    _sealed(folder / "hollow.safetensors", {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 0]}})
    _sealed(folder / "beyond.safetensors", {"w": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}})
    listed = [{"value": name} for name in content()]
    _sealed(folder / "list.safetensors", {}, {"schema": 1, "names": [], "content": {"list": listed}})
    _sealed(folder / "offset.safetensors", {"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}})
    _sealed(folder / "type.safetensors", {"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 4]}})
    _sealed(folder / "kind.safetensors", {"w": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}})
    whole = (folder / "other.safetensors").read_bytes()
    (folder / "long").write_bytes((1 << 63).to_bytes(8, "little") + whole[8:])
    (folder / "cut").write_bytes(whole[: int.from_bytes(whole[:8], "little")])
    (folder / "nowhere").symlink_to(folder / "absent")
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("hello, this is not a checkpoint at all")
    (folder / "deep").write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    names = sorted(path.name for path in folder.iterdir())
    return {name: [error_of(folder / name), os.path.lexists(folder / name)] for name in names}


def _sealed(path: Path, header: dict[str, Any], note: dict[str, Any] | None = None) -> None:
    """Any header and note with a checksum that fits."""
    notes = {"paceline": json.dumps(note or {})}
    digest = checkpoint._digest(header, notes, iter([bytes(4)]))
    text = json.dumps({"__metadata__": {**notes, checkpoint.DIGEST: digest}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))


def newer(folder: Path, said: Messages) -> Any:
    """A newer one is refused although there is one before it, and stays where it is."""
    import paceline.runtime.checkpoint as module

    path = folder / "a"
    save_checkpoint(path, content())
    module.SCHEMA = 99
    save_checkpoint(path, content())
    module.SCHEMA = 1
    return [error_of(path), path.exists()]


def full_disk(folder: Path, said: Messages) -> Any:
    """Saving fails, training goes on, the checkpoint on disk stays sound, and saving is tried again."""
    made = training(folder / "a")
    made.position = replace(made.position, step=4)
    made.save_if_due(0, {})
    made.finish_saving()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    tried = []
    for step in range(5, 20):
        made.position = replace(made.position, step=step)
        before = made.writer.failures
        made.save_if_due(0, {})
        made.finish_saving()
        tried += [step] if made.writer.failures != before else []
    kept = load_checkpoint(folder / "a")
    files = sorted(path.name for path in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    made.position = replace(made.position, step=made.writer.again)
    made.save_if_due(0, {})
    made.finish_saving()
    after = load_checkpoint(folder / "a")
    assert kept is not None
    assert after is not None
    return [tried, kept["position"]["step"], files, after["position"]["step"] == made.position.step, said]


def beside(folder: Path, said: Messages) -> Any:
    """Training changes its state while a checkpoint is written: the file has what was there when it began."""
    made = training(folder / "a")
    made.position = replace(made.position, step=4)
    state = copy.deepcopy(made._state())
    hold, save = threading.Event(), training_module.save_checkpoint
    training_module.save_checkpoint = lambda *given: (hold.wait(), save(*given))  # type: ignore[assignment]
    made.save_if_due(0, {})
    absent = not (folder / "a").exists()
    made.model(torch.randn(5, 4)).sum().backward()
    made.update()
    hold.set()
    made.finish_saving()
    training_module.save_checkpoint = save
    kept = load_checkpoint(folder / "a")
    assert kept is not None
    return [absent, same(dict(state[0]), kept["state"][0]), same(listed(state[1]), kept["state"][1])]


def does_not_fit(folder: Path, said: Messages) -> Any:
    """Another model is one clear error, the same model resumes."""
    made = training(folder / "a")
    made.position = replace(made.position, step=7)
    made.save_last(0)
    again = training(folder / "a")
    again.resume()
    try:
        training(folder / "a", width=5).resume()
        error = ""
    except PacelineError as caught:
        error = f"{type(caught).__name__}: {caught}"
    equal = same(made._state()[0], dict(again._state()[0]))
    return [error, again.position.step, equal]


def for_others(folder: Path, said: Messages) -> Any:
    """A file for the reader of the safetensors package, and what it has to find."""
    made = training(folder / "a.safetensors")
    made.save_last(0)
    state = made.model.state_dict()
    return {name: tensor.double().flatten().tolist() for name, tensor in state.items()}


def by_torch_alone(folder: Path, said: Messages) -> Any:
    """Whether the script for plain PyTorch gets both states, and its model takes the same next step."""
    made, other = training(folder / "a.safetensors"), training(folder / "unused", every=1)
    made.save_last(0)
    script = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "training" / "plain_resume.py"))
    model, optimizer = script["states"](folder / "a.safetensors")
    equal = [same(dict(made.model.state_dict()), model), same(listed(made.optimizers[0].state_dict()), optimizer)]
    for parameter in other.parameters:
        parameter.data.zero_()
    other.model.load_state_dict(model)
    other.optimizers[0].load_state_dict(optimizer)
    for each in (made, other):
        each.model(torch.ones(5, 4)).square().sum().backward()
        each.update()
    return [*equal, same(made._state()[0], other._state()[0])]


def listed(state: Any) -> Any:
    """A state as a file holds it, where tuples are lists."""
    if isinstance(state, dict):
        return {key: listed(value) for key, value in state.items()}
    return [listed(value) for value in state] if isinstance(state, list | tuple) else state


CHECKS = (
    beside,
    by_torch_alone,
    round_trip,
    synchronised,
    flips,
    falls_back,
    killed,
    name_taken,
    only_before,
    foreign,
    newer,
    full_disk,
    does_not_fit,
    for_others,
)


class Listener(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, said: Messages) -> None:
        super().__init__()
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def run(check: Callable[[Path, Messages], Any], folder: Path) -> Any:
    """One check in a folder of its own."""
    folder.mkdir()
    said: Messages = []
    logging.getLogger("paceline").handlers = [Listener(said)]
    return check(folder, said)


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    sys.stdout.write(json.dumps({check.__name__: run(check, root / check.__name__) for check in CHECKS}))

"""One rank that trains and looks at what it tells about itself."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.errors import InputError
from paceline.runtime import Settings, join
from paceline.runtime.emulate import Emulated, emulate

RANK = int(os.environ["RANK"])


def fetched(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port + RANK}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def main(options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    emulate(model, Emulated(per_sample=0.001, speed=[3.0, 1.0][RANK]))
    port = options["port"]
    settings = Settings(metrics=Path(options["metrics"]), metrics_port=port)
    found: dict[str, Any] = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with join(model, optimizer, TensorDataset(torch.randn(400, 4)), global_batch=40, settings=settings) as pace:
        idle = socket.create_connection(("127.0.0.1", port + RANK))  # asks for nothing, and keeps nobody out for long
        for batch in pace.batches(steps=30):
            pace.step(model(batch.inputs).square().mean())
        found["text"], found["line"] = fetched(port, "/metrics"), json.loads(fetched(port, "/line.json"))
        found["explained"], found["shares"] = pace.explain(), pace.shares
        idle.close()
    try:
        Settings(tensorboard=Path("x"))
        join(model, optimizer, [1.0], global_batch=1, settings=Settings(tensorboard=Path("x")))
    except InputError as error:
        found["tensorboard"] = str(error)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[3]).write_text(json.dumps(main(json.loads(sys.argv[2]))))
    os._exit(0)

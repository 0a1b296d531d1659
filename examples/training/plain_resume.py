"""Reads a checkpoint of Paceline with PyTorch alone: go on in a script that knows nothing of Paceline.

model_state, optimizer_state, *others = states("run/state.safetensors")
model.load_state_dict(model_state)
optimizer.load_state_dict(optimizer_state)
"""

import json
from pathlib import Path

import torch

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def states(path):
    """State dictionaries of the model, of its optimizers, and of the objects in `Settings(also=...)`, in this order."""
    raw = bytearray(Path(path).read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    note = json.loads(header["__metadata__"]["paceline"])
    tensors = [tensor(header[name], raw[begin:]) for name in note["names"]]
    return unpacked(note["content"], tensors)["state"]


def tensor(entry, data):
    """One tensor of a file in the safetensors format; `safetensors.torch.load_file` reads them as well."""
    begin, end = entry["data_offsets"]
    kind = TYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=kind)
    return torch.frombuffer(data[begin:end], dtype=kind).reshape(entry["shape"])


def unpacked(packed, tensors):
    """Tables, lists and numbers again, with the tensors in their places."""
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "table" in packed:
        return {key: unpacked(value, tensors) for key, value in packed["table"]}
    if "list" in packed:
        return [unpacked(value, tensors) for value in packed["list"]]
    return packed["value"]

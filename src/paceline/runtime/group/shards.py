"""Models larger than a device: ranks that hold one model together, sharded by FSDP2, as one unit of the group.

    mesh = shard_mesh([[0, 1], [2]])                 # this rank's unit; None where it is alone
    if mesh is not None:
        fully_shard(model, mesh=mesh)

A rank that holds the whole model is a unit too. FSDP2 sums gradients inside a unit; between units each shard travels
between those that hold it (`columns.py`). FSDP2's own exchanges cannot be interrupted, so the ranks of a unit enter
them together or not at all: before each step, and before each commit, they agree (`together`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.errors import InputError, TrainingLost
from paceline.runtime.group.wire import Broken
from paceline.runtime.settings import Settings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = [
    "ShardUnit",
    "Unit",
    "gather_whole",
    "is_sharded",
    "keep_own_rows",
    "local_rows",
    "own_rows",
    "rows_of",
    "shard_like",
    "shard_mesh",
    "spread_rows",
    "unit_of",
]

LOST = "a rank that holds shards of this rank's model has failed, and its shards with it"
HINT = "start the ranks of this unit again, with a checkpoint or beside a unit that goes on"


def shard_mesh(units: Sequence[Sequence[int]], *, timeout: float = 300.0) -> DeviceMesh | None:
    """The mesh for `fully_shard(model, mesh=...)` on this rank; None if its unit is this rank alone.

    `units` has every rank once. A unit fails after `timeout` seconds without a message of another rank.
    """
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched():
            raise InputError(
                "shard_mesh() needs torch.distributed, and these ranks were not started by torchrun",
                hint="torchrun --nproc-per-node N SCRIPT, or call torch.distributed.init_process_group() before it, "
                "with an init_method that does not take MASTER_PORT",
            )
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    ranks = sorted(rank for unit in units for rank in unit)
    if ranks != list(range(dist.get_world_size())):
        raise InputError(
            f"units of ranks {[list(unit) for unit in units]}, expected each of {dist.get_world_size()} ranks once",
            hint="shard_mesh([[0, 1], [2]]) for three ranks, of which two hold one model together",
        )
    mine, _ = dist.new_subgroups_by_enumeration([list(unit) for unit in units], timeout=timedelta(seconds=timeout))
    if mine.size() == 1:
        return None
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh.from_group(mine, "cuda" if torch.cuda.is_available() else "cpu")


class Unit:
    """A rank that holds the whole model."""

    ranks = 1
    index = 0
    first = -1
    """The launcher's number of the unit's first rank, by which its ranks know each other; -1 for a rank alone."""
    sharded = False

    def together(self, action: Callable[[], None]) -> None:
        """Do it; of a unit with several ranks all go on afterwards, or for all the view has ended."""
        action()

    def is_lost(self, error: BaseException | None) -> bool:
        """Whether an error of the loop says that another rank of this unit has failed."""
        return False

    def lost(self) -> TrainingLost:
        """What the ranks say that are left of a unit."""
        return TrainingLost(LOST, hint=HINT)


class ShardUnit(Unit):
    """This rank among those that hold one model together."""

    sharded = True

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        if mesh.ndim != 1:
            raise InputError(
                f"parameters are sharded over a mesh of {mesh.ndim} dimensions, expected 1",
                hint="between units gradients are summed by Paceline: fully_shard(model, mesh=shard_mesh(...))",
            )
        self.mesh, self._device = mesh, device
        self.ranks, self.index = mesh.size(), mesh.get_local_rank()
        self.first = int(mesh.mesh.flatten()[0])

    def together(self, action: Callable[[], None]) -> None:
        """Do it on all ranks of the unit; if the view has ended for one of them, it has for all."""
        broken: Broken | None = None
        try:
            action()
        except Broken as error:
            broken = error
        failed = torch.tensor([float(broken is not None)], device=self._device)
        try:
            dist.all_reduce(failed, group=self.mesh.get_group())
        except RuntimeError as error:
            raise self.lost() from error
        if failed.item():
            raise broken or Broken("the view has ended for another rank of this unit")

    def is_lost(self, error: BaseException | None) -> bool:
        """FSDP2's exchanges report a failed peer as what Gloo or NCCL says."""
        said = str(error).lower()
        return isinstance(error, RuntimeError) and any(name in said for name in ("gloo", "nccl", "closed by peer"))


def is_sharded(value: Any) -> TypeGuard[DTensor]:
    """Whether this is a tensor of which this rank holds a part only."""
    return isinstance(value, Tensor) and hasattr(value, "device_mesh")


def unit_of(parameters: Sequence[nn.Parameter], settings: Settings) -> Unit:
    """How this rank holds its model; what a sharded model cannot have is refused."""
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    if not sharded:
        return Unit()
    placements = {(parameter.device_mesh, parameter.placements) for parameter in sharded}
    if len(sharded) < len(parameters) or len(placements) > 1 or not sharded[0].placements[0].is_shard(0):
        raise InputError(
            f"{len(sharded)} of {len(parameters)} parameters are sharded by rows of one mesh, expected all or none",
            hint="fully_shard(model, mesh=mesh) for the whole model, after it for its layers; without placements",
        )
    refused = {
        "scheme='auto'": settings.scheme == "auto",
        "transport='mpi'": settings.transport == "mpi",
        "batchnorm='sync'": settings.batchnorm == "sync",
        "chunk": settings.chunk is not None,
        "noise": settings.noise,
        "large with layer-wise rates": settings.large is not None and settings.large.layerwise != "none",
    }
    if any(refused.values()):
        raise InputError(
            f"Settings({next(name for name, asked in refused.items() if asked)}) does not go with a sharded model",
            hint="leave it out; a smaller global_batch needs less memory",
        )
    return ShardUnit(sharded[0].device_mesh, parameters[0].device)


def rows_of(rows: int, ranks: int, index: int) -> tuple[int, int]:
    """The rows of a tensor that one of several ranks holds, as FSDP2 cuts it."""
    each = -(-rows // ranks)
    return min(index * each, rows), min((index + 1) * each, rows)


def spread_rows(tensor: Tensor, *, speaks: bool) -> Tensor:
    """A tensor in its whole size with the rows that this rank holds, of which the sum over a unit is the whole.

    What is not sharded is given by the rank that `speaks`.
    """
    if not is_sharded(tensor):
        return tensor if speaks else torch.zeros(tensor.shape, dtype=tensor.dtype)
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
    mesh = tensor.device_mesh
    begin, end = rows_of(len(tensor), mesh.size(), mesh.get_local_rank())
    whole[begin:end] = tensor.to_local().cpu()
    return whole


def gather_whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, which all ranks of the unit ask for."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def keep_own_rows(part: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Of the state of a model or an optimizer, whole, the shards that this rank holds."""
    if isinstance(part, torch.optim.Optimizer):
        held = [parameter for group in part.param_groups for parameter in group["params"]]
        rows = {
            index: {name: own_rows(value, held[int(index)]) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        return {**state, "state": rows}
    if isinstance(part, nn.Module):
        mine = part.state_dict()
        return {name: own_rows(value, mine.get(name)) for name, value in state.items()}
    return state


def own_rows(value: Any, like: Any) -> Any:
    """Of a whole tensor the shard that this rank holds, if what it is `like` is sharded."""
    if not is_sharded(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    mesh = like.device_mesh
    begin, end = rows_of(len(value), mesh.size(), mesh.get_local_rank())
    return shard_like(value[begin:end].clone().to(like.device), like)


def shard_like(local: Tensor, like: DTensor) -> DTensor:
    """The rows of this rank as a part of a tensor that is sharded like another."""
    how = {"run_check": False, "shape": like.shape, "stride": like.stride()}
    shard: DTensor = type(like).from_local(local, like.device_mesh, like.placements, **how)
    return shard


def local_rows(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor

"""Models larger than a device: ranks that hold one model together, sharded by FSDP2, form one unit of the group.

    mesh = shard_mesh([[0, 1], [2]])                 # the unit of this rank; None if it is alone
    if mesh is not None:
        fully_shard(model, mesh=mesh)

A rank that holds the whole model is a unit as well. FSDP2 sums gradients inside a unit; between units, each shard is
summed over the ranks that hold it (`columns.py`). Exchanges of FSDP2 cannot be interrupted, so all ranks of a unit must
enter them or none: they agree before each step and before each commit (`together`).
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
HINT = "restart the ranks of this unit, with a checkpoint or while another unit continues"


def shard_mesh(units: Sequence[Sequence[int]], *, timeout: float = 300.0) -> DeviceMesh | None:
    """The mesh for `fully_shard(model, mesh=...)` on this rank; None if the unit consists of this rank alone.

    `units` lists every rank once. A unit fails after `timeout` seconds without a message from another of its ranks.
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
    """The launched rank of the unit's first rank, which identifies the unit; -1 for a rank that is alone."""
    sharded = False

    def together(self, action: Callable[[], None]) -> None:
        """Run the action on all ranks of the unit; afterwards all continue, or `Broken` is raised on all."""
        action()

    def is_lost(self, error: BaseException | None) -> bool:
        """Whether an error of the training loop means that another rank of this unit has failed."""
        return False

    def lost(self) -> TrainingLost:
        """The error that the remaining ranks of a unit raise."""
        return TrainingLost(LOST, hint=HINT)


class ShardUnit(Unit):
    """A unit of several ranks that hold one model together."""

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
        """Run the action on all ranks of the unit; if the view has ended for one rank, raise `Broken` on all."""
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
        """FSDP2's exchanges report a failed peer as an error of Gloo or NCCL."""
        said = str(error).lower()
        return isinstance(error, RuntimeError) and any(name in said for name in ("gloo", "nccl", "closed by peer"))


def is_sharded(value: Any) -> TypeGuard[DTensor]:
    """Whether this rank holds only a part of this tensor."""
    return isinstance(value, Tensor) and hasattr(value, "device_mesh")


def unit_of(parameters: Sequence[nn.Parameter], settings: Settings) -> Unit:
    """The unit of this rank; refuses settings that do not work with a sharded model."""
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
    """Begin and end of the rows that one of several ranks holds, divided as FSDP2 does."""
    each = -(-rows // ranks)
    return min(index * each, rows), min((index + 1) * each, rows)


def spread_rows(tensor: Tensor, *, speaks: bool) -> Tensor:
    """A tensor of whole size with the rows of this rank and zeros elsewhere; its sum over the unit is the whole tensor.

    A tensor that is not sharded is contributed by the rank with `speaks` set.
    """
    if not is_sharded(tensor):
        return tensor if speaks else torch.zeros(tensor.shape, dtype=tensor.dtype)
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
    mesh = tensor.device_mesh
    begin, end = rows_of(len(tensor), mesh.size(), mesh.get_local_rank())
    whole[begin:end] = tensor.to_local().cpu()
    return whole


def gather_whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor; all ranks of the unit must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def keep_own_rows(part: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The shards of this rank, from the whole state of a model or an optimizer."""
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
    """The shard of this rank, from a whole tensor, if `like` is sharded; otherwise the whole tensor."""
    if not is_sharded(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    mesh = like.device_mesh
    begin, end = rows_of(len(value), mesh.size(), mesh.get_local_rank())
    return shard_like(value[begin:end].clone().to(like.device), like)


def shard_like(local: Tensor, like: DTensor) -> DTensor:
    """A sharded tensor from the rows of this rank, sharded like another tensor."""
    how = {"run_check": False, "shape": like.shape, "stride": like.stride()}
    shard: DTensor = type(like).from_local(local, like.device_mesh, like.placements, **how)
    return shard


def local_rows(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this rank holds."""
    return tensor.to_local() if is_sharded(tensor) else tensor

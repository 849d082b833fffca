"""The ranks of one engine among themselves: they join, compute collectively, and notice that one of them is gone.

Every rank does the same in the same order, so what one waits for the others send. A rank that raises while the others
wait leaves them waiting: ``workers/rank_group/group.py`` ends them. A rank alone joins nobody, and everything here is
then what it would be for itself.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.tensor import DTensor

from workers.rank_protocol.errors import ModelLoadError, SiblingLostError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.rank.device import Placement
    from workers.rank_protocol.spec import RankSpec

#: Unless somebody knows better: the ranks share a machine, and nobody else should reach their sockets.
_LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
#: NCCL's watchdog would ask the rendezvous for dump requests, and that is gone once all ranks are ready.
_NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
#: How the end of another rank shows: connections come as plain RuntimeErrors that name gloo's file, the rendezvous
#: says that it waited in vain, and NCCL whom it blames.
_LOST = ("/tcp/pair.cc", "/tcp/unbound_buffer.cc", "Wait timeout", "remote process exited")


def join(spec: RankSpec, placement: Placement) -> None:
    """Wait for the other ranks and be one of them. To be called before CUDA is initialised.

    Raises SiblingLostError if they do not come in time, ModelLoadError if the ranks cannot be connected at all.
    """
    _prepare_environment(spec, placement)
    try:
        dist.init_process_group(
            placement.backend,
            store=FileStore(spec.rendezvous, spec.num_ranks),
            rank=spec.rank,
            world_size=spec.num_ranks,
            timeout=timedelta(seconds=spec.join_timeout_s),
        )
    except RuntimeError as error:
        if is_lost_sibling(error):
            raise SiblingLostError(f"the other ranks did not come: {one_line(error)}") from error
        raise ModelLoadError(f"the ranks cannot be connected: {one_line(error)}") from error


def _prepare_environment(spec: RankSpec, placement: Placement) -> None:
    for name, value in (_LOOPBACK_ONLY | _NO_DUMPS).items():
        os.environ.setdefault(name, value)
    device = placement.device
    # Transformers puts a split model on the accelerator that torch prefers, with this index.
    os.environ["LOCAL_RANK"] = str(spec.rank if device.index is None else device.index)
    if device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    preferred = torch._C._get_accelerator().type
    if preferred != device.type:
        raise ModelLoadError(f"several ranks cannot be on {device.type} here: torch prefers {preferred}")


def leave() -> None:
    """Forget the others; no harm for a rank alone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def least(number: int, device: torch.device) -> int:
    """The least of what the ranks say. Nobody gets the answer before all have asked."""
    if not dist.is_initialized():
        return number
    tensor = torch.tensor(number, dtype=torch.int64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return int(tensor)


def position() -> tuple[int, int]:
    """This rank's number, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def merge(own: bytearray, device: torch.device) -> bytes:
    """Bytes of which every rank knows some and has zeros in the places of the others: all of them, to every rank."""
    if not dist.is_initialized():
        return bytes(own)
    tensor = torch.frombuffer(own, dtype=torch.uint8).to(device)
    dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor.cpu().numpy().tobytes()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which every rank may hold a part, gathered: all ranks have to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_lost_sibling(error: BaseException) -> bool:
    """Whether another rank's end is what is behind an error."""
    return any(
        isinstance(one, SiblingLostError) or (isinstance(one, RuntimeError) and any(sign in str(one) for sign in _LOST))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

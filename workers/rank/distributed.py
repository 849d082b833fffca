"""What the ranks of one engine do together: they join, exchange data, and notice that one of them has ended.

Every rank calls these functions in the same order, because each call waits for all ranks. If one rank raises instead,
the others would wait forever, so ``workers/rank_group/group.py`` kills them. A single rank does not join; for it the
functions return its own data.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.tensor import DTensor

from baton_serve.workers.rank_protocol.errors import ModelLoadError, SiblingLostError, chain, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec

#: Defaults, which the user may override: the ranks share a machine, and no other machine should reach their sockets.
_LOOPBACK_ONLY = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
#: NCCL's watchdog would look for dump requests in the rendezvous file, which is removed once all ranks are ready.
_NO_DUMPS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
#: Parts of the messages of errors that the end of another rank causes: RuntimeErrors of gloo name gloo's source file,
#: the rendezvous reports a timeout, and NCCL names the remote process.
_LOST = ("/tcp/pair.cc", "/tcp/unbound_buffer.cc", "Wait timeout", "remote process exited")


def join(spec: RankSpec, device: torch.device) -> None:
    """Wait for the other ranks and connect to them. Call it before CUDA is initialised.

    Raises SiblingLostError if they do not start in time, ModelLoadError if the ranks cannot be connected.
    """
    _prepare_environment(spec, device)
    try:
        dist.init_process_group(
            backend_for(device),
            store=FileStore(spec.rendezvous, spec.num_ranks),
            rank=spec.rank,
            world_size=spec.num_ranks,
            timeout=timedelta(seconds=spec.join_timeout_s),
        )
    except RuntimeError as error:
        if is_lost_sibling(error):
            raise SiblingLostError(f"the other ranks did not come: {one_line(error)}") from error
        raise ModelLoadError(f"the ranks cannot be connected: {one_line(error)}") from error


def backend_for(device: torch.device) -> str:
    """The backend of torch.distributed: gloo ends processes that gather tensors of a GPU.

    https://github.com/pytorch/pytorch/issues/152645, seen with torch 2.11 on an H100.
    """
    return "nccl" if device.type == "cuda" else "gloo"


def _prepare_environment(spec: RankSpec, device: torch.device) -> None:
    for name, value in (_LOOPBACK_ONLY | _NO_DUMPS).items():
        os.environ.setdefault(name, value)
    # Transformers loads a split model to torch's preferred accelerator, with the index in LOCAL_RANK.
    os.environ["LOCAL_RANK"] = str(spec.rank if device.index is None else device.index)
    if device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    preferred = torch._C._get_accelerator().type
    if preferred != device.type:
        raise ModelLoadError(f"several ranks cannot be on {device.type} here: torch prefers {preferred}")


def leave() -> None:
    """Disconnect from the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()


def minimum(number: int, device: torch.device) -> int:
    """The minimum of the ranks' numbers. Returns when all ranks have called it."""
    if not dist.is_initialized():
        return number
    tensor = torch.tensor(number, dtype=torch.int64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MIN)
    return int(tensor)


def of_first_rank(numbers: list[int], count: int, device: torch.device) -> list[int]:
    """The ``count`` numbers of rank 0, on all ranks; what the others give does not matter. Returns when all ranks have
    called it.
    """
    if not dist.is_initialized():
        return numbers
    is_first = dist.get_rank() == 0
    tensor = torch.tensor(numbers if is_first else [0] * count, dtype=torch.int64, device=device)
    dist.broadcast(tensor, src=0)
    return numbers if is_first else tensor.tolist()


def rank_and_size() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def merge_bytes(own: bytearray, device: torch.device) -> bytes:
    """Combine byte strings of equal length: at every index one rank has the byte and the other ranks have zero."""
    if not dist.is_initialized():
        return bytes(own)
    tensor = torch.frombuffer(own, dtype=torch.uint8).to(device)
    dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor.cpu().numpy().tobytes()


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' tensors, which replaces each of them."""
    if dist.is_initialized():
        dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, which may be split over the ranks. All ranks must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that may be split over the ranks."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_lost_sibling(error: BaseException) -> bool:
    """Whether the error was caused by the end of another rank."""
    return any(
        isinstance(one, SiblingLostError) or (isinstance(one, RuntimeError) and any(sign in str(one) for sign in _LOST))
        for one in chain(error)
    )

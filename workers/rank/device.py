"""Which device a rank computes on."""

from __future__ import annotations

import torch

from baton_serve.workers.rank_protocol.errors import ModelLoadError
from baton_serve.workers.rank_protocol.spec import RankSpec


def assign_device(spec: RankSpec) -> torch.device:
    """The device that a rank computes on. Raises ModelLoadError."""
    device = choose_device(spec.device)
    if device.type == "cpu":
        return device
    if spec.device in {"auto", "cuda"}:
        return gpu_of(spec.rank, spec.num_ranks, torch.cuda.device_count())
    if spec.num_ranks > 1:
        raise ModelLoadError(f"{spec.num_ranks} ranks need a GPU each, and device {spec.device} is one; cuda is all")
    return device


def gpu_of(rank: int, num_ranks: int, num_gpus: int) -> torch.device:
    """The GPU of a rank, which is its own, as NCCL wants. Raises ModelLoadError if there are too few, or no NCCL."""
    if num_ranks > num_gpus:
        raise ModelLoadError(f"{num_ranks} ranks need a GPU each, and there are {num_gpus}")
    if num_ranks > 1 and not torch.distributed.is_nccl_available():
        raise ModelLoadError(f"{num_ranks} ranks on GPUs need a torch with NCCL, and this one has none")
    return torch.device("cuda", rank)


def use_on_this_thread(device_index: int) -> None:
    """Make a GPU the current one of the calling thread, with its context, which a new thread does not have.

    Without a context UCX finds no way from GPU to GPU, and moves blocks through memory of the host instead.
    """
    torch.cuda.set_device(device_index)
    # Torch does not tell CUDA about a device that it believes to be the current one; this call certainly does.
    torch.cuda.synchronize(device_index)


def wait_for_step(device: torch.device) -> None:
    """Wait until a GPU has done what this thread has given it; for what others have given it, block copies, is not
    waited.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def choose_device(wanted: str) -> torch.device:
    """The device that ``RankSpec.device`` names for a single rank. Raises ModelLoadError."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ModelLoadError(f"no such device: {wanted}") from None
    if device.type not in {"cpu", "cuda"}:
        raise ModelLoadError(f"device {wanted} is not supported; cpu and cuda are")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ModelLoadError(f"device {wanted} is wanted, but torch sees no CUDA device")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise ModelLoadError(f"device {wanted} is wanted, but there are {torch.cuda.device_count()}")
    return torch.device("cuda", index)

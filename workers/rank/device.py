"""Which device a rank computes on, and which backend of torch.distributed the ranks of one engine use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from workers.rank_protocol.errors import ModelLoadError

if TYPE_CHECKING:
    from workers.rank_protocol.spec import RankSpec


@dataclass(frozen=True)
class RankDevice:
    """A rank's device. ``backend``: ``gloo`` or ``nccl``. ``num_sharers``: how many of the engine's ranks use it."""

    device: torch.device
    backend: str = "gloo"
    num_sharers: int = 1


def assign_device(spec: RankSpec) -> RankDevice:
    """The device that a rank computes on. Raises ModelLoadError."""
    device = choose_device(spec.device)
    if device.type == "cpu" or spec.device not in {"auto", "cuda"}:
        return RankDevice(device, num_sharers=spec.num_ranks)
    return spread_over_gpus(spec.rank, spec.num_ranks, torch.cuda.device_count())


def spread_over_gpus(rank: int, num_ranks: int, num_gpus: int) -> RankDevice:
    """The GPU of a rank: its own if there are enough; if not, several ranks share a GPU and use gloo, not NCCL."""
    device = torch.device("cuda", rank % num_gpus)
    if num_ranks <= num_gpus:
        return RankDevice(device, "nccl" if torch.distributed.is_nccl_available() else "gloo")
    return RankDevice(device, num_sharers=len(range(rank % num_gpus, num_ranks, num_gpus)))


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

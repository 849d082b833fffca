"""What a rank process is started with."""

from __future__ import annotations

from typing import Literal

import msgspec

from workers.transfer.options import TransferOptions


class RankSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Start parameters of one rank process.

    ``num_blocks`` wins over ``kv_cache_bytes``; with neither, a CUDA rank takes ``gpu_memory_fraction`` of what is
    free after the weights, and a CPU rank 1 GiB.
    """

    #: Folder or hub id.
    model: str
    engine_id: str
    revision: str | None = None
    rank: int = 0
    num_ranks: int = 1
    #: ``auto`` (the GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``...
    device: str = "auto"
    #: ``auto``: float32 on a CPU, the checkpoint's own on a GPU.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: Tokens per block.
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_fraction: float = 0.9
    #: Tokens; None: what the model's config says.
    max_model_len: int | None = None
    #: Torch's threads for one operation; None: the cores this process may use, at most 8.
    num_threads: int | None = None
    #: Who moves blocks: ``nixl``, or ``none`` for an engine that neither reads nor is read.
    transfer: Literal["nixl", "none"] = "nixl"
    transfer_options: TransferOptions = TransferOptions()
    #: Address of the worker's internal port. On loopback the block transfer stays there too.
    internal_host: str = "127.0.0.1"

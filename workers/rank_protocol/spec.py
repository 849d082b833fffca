"""What a rank process is started with."""

from __future__ import annotations

from typing import Literal

import msgspec

from workers.rank_protocol.transfer_options import TransferOptions

#: Threads of one rank when nobody says how many: more help a small model little, and others run on the machine too.
MAX_DEFAULT_THREADS = 8


class RankSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Start parameters of one rank process.

    ``num_blocks`` wins over ``kv_cache_bytes``; with neither, the ranks on a GPU take ``gpu_memory_fraction`` of what
    is free after the weights, in equal parts, and an engine on a CPU takes 1 GiB. Bytes are those of the whole engine,
    a rank takes its ``num_ranks``-th part. A block is on every rank, each with its own heads: all ranks have as many
    blocks as the one with the least room.
    """

    #: Folder or hub id.
    model: str
    engine_id: str
    revision: str | None = None
    rank: int = 0
    num_ranks: int = 1
    #: File in a folder of nobody else's in which the ranks of one engine find each other; empty for a rank alone.
    rendezvous: str = ""
    #: How long a rank waits for the others to come, seconds.
    join_timeout_s: float = 600.0
    #: ``auto`` (the GPUs if there are any), ``cpu``, ``cuda``, ``cuda:1``... Several ranks spread over the GPUs,
    #: except where one is named: then all share that one.
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
    #: Torch's threads for one operation of this rank; None: the cores this process may use, at most 8.
    num_threads: int | None = None
    #: Who moves blocks: ``nixl``, or ``none`` for an engine that neither reads nor is read.
    transfer: Literal["nixl", "none"] = "nixl"
    transfer_options: TransferOptions = TransferOptions()
    #: Address of the worker's internal port. On loopback the block transfer stays there too.
    internal_host: str = "127.0.0.1"

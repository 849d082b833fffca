"""The start parameters of a rank process."""

from __future__ import annotations

from typing import Literal

import msgspec

#: Most threads of one rank by default: more threads help a small model little, and other processes need cores too.
MAX_DEFAULT_THREADS = 8


class TransferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of block transfer."""

    #: True: D uses blocks without comparing their versions, even if P has overwritten them. This exists so that a test
    #: can show why the fence is needed.
    unsafe_disable_fence: bool = False
    #: Bytes posted in one call. Over shared memory NIXL copies inside that call, and other reads, cancels and
    #: notifications have to wait: 1 to 3 ms for 16 MiB.
    piece_bytes: int = 16 * 2**20
    #: Pieces of one read in flight at once, if the transport does not copy inside the call.
    window: int = 4


class RankSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Start parameters of one rank process.

    ``num_blocks`` has precedence over ``kv_cache_bytes``. If neither is set, the ranks on a GPU share equally
    ``gpu_memory_fraction`` of the memory that is free after the weights, and an engine on a CPU uses 1 GiB.
    Byte sizes are for the whole engine; each rank uses the ``num_ranks``-th part. Every rank holds its own heads of
    every block, so all ranks have as many blocks as the rank with the least memory.
    """

    #: Folder or hub id of the model.
    model: str
    engine_id: str
    revision: str | None = None
    #: Folders of LoRA adapters, by the names under which they are served.
    adapters: dict[str, str] = {}
    rank: int = 0
    num_ranks: int = 1
    #: File by which the ranks of one engine find each other, in a folder that only this user can open; empty for a
    #: single rank.
    rendezvous: str = ""
    #: Seconds that a rank waits for the others to start.
    join_timeout_s: float = 600.0
    #: ``auto`` (the GPUs if there are any), ``cpu``, ``cuda``, ``cuda:1``... Several ranks have a GPU each,
    #: and none is named.
    device: str = "auto"
    #: ``auto``: float32 on a CPU, the type of the checkpoint on a GPU.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    #: How attention reads the cache: ``in-place`` (needs a GPU), ``gather``; ``auto``: in place where that is possible.
    attention: Literal["auto", "in-place", "gather"] = "auto"
    #: Whether decode steps are CUDA graphs; ``auto``: where it is possible.
    decode_graphs: Literal["auto", "on", "off"] = "auto"
    #: No decode step has more rows.
    max_num_seqs: int = 64
    #: No step has more tokens.
    max_num_batched_tokens: int = 2048
    #: Tokens per block.
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_fraction: float = 0.9
    #: Tokens; None: the value of the model's config.
    max_model_len: int | None = None
    #: Torch's threads for one operation of this rank; None: the cores this process may use, at most 8.
    num_threads: int | None = None
    #: ``nixl``, or ``none`` for an engine that neither reads blocks nor is read from.
    transfer: Literal["nixl", "none"] = "nixl"
    transfer_options: TransferOptions = TransferOptions()
    #: Address of the worker's internal port. If it is a loopback address, block transfer uses loopback only too.
    internal_host: str = "127.0.0.1"

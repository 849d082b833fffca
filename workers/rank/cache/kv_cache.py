"""The paged KV cache of one rank: one tensor ``[block, kv_head, layer, K|V, slot, head_dim]``.

A rank's part of a block is contiguous in memory, and so is any range of heads within it, so that a reader needs one
descriptor per block. The slots of one (block, head, layer, K|V) are contiguous too.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from baton_serve.workers.rank.gpu import support as gpu
from baton_serve.workers.rank_protocol.errors import CacheError, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec

LAYOUT = "block,kv_head,layer,kv,slot,head_dim"
DEFAULT_CPU_BYTES = 1 << 30
#: The size of a huge page on x86-64, and of the alignment that makes the most of them elsewhere.
HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True)
class CacheShape:
    """Sizes of one block on one rank."""

    num_kv_heads: int
    num_layers: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        return self.num_kv_heads * self.num_layers * 2 * self.block_size * self.head_dim * self.dtype.itemsize

    @property
    def pieces_per_head(self) -> int:
        """The distance between two heads of a block, in pieces."""
        return self.num_layers * 2

    @property
    def pieces_per_block(self) -> int:
        """The distance between two blocks, in pieces."""
        return self.num_kv_heads * self.pieces_per_head


class KVCache:
    """The cache tensor, whose address never changes."""

    def __init__(self, shape: CacheShape, num_blocks: int, device: torch.device, *, with_spare: bool = False) -> None:
        """``with_spare``: there is a block ``num_blocks``, which no sequence has, for rows that only fill up a batch.

        Raises CacheError if the tensor does not fit into memory.
        """
        self.shape = shape
        self.num_blocks = num_blocks
        sizes = (num_blocks + with_spare, shape.num_kv_heads, shape.num_layers, 2, shape.block_size, shape.head_dim)
        try:
            #: All blocks, the spare one as well.
            self.all_blocks = _zeros(sizes, shape.dtype, device)
        except RuntimeError as error:
            size = num_blocks * shape.block_bytes
            why = f"no room for a KV cache of {num_blocks} blocks ({size} bytes) on {device}: {one_line(error)}"
            raise CacheError(why) from error
        self.tensor = self.all_blocks[:num_blocks]
        self._slots = self.all_blocks.view(-1, shape.head_dim)
        self._store = _program(device)

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def address(self) -> int:
        return self.tensor.data_ptr()

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store K and V, both ``[kv_head, token, head_dim]``. ``slots`` ``[kv_head * token]``: slots of layer 0's K."""
        offset = layer * 2 * self.shape.block_size
        dim = self.shape.head_dim
        if self._store is not None and key.stride(-1) == value.stride(-1) == 1:
            self._store(self._slots[offset:], slots, key, value, self.shape.block_size * dim)
            return
        self._slots.index_copy_(0, slots + offset, key.reshape(-1, dim))
        self._slots.index_copy_(0, slots + (offset + self.shape.block_size), value.reshape(-1, dim))

    def clear(self, block_ids: list[int]) -> None:
        """Fill blocks with zeros."""
        if block_ids:
            self.tensor.index_fill_(0, torch.tensor(block_ids, device=self.device), 0)


def gathered(blocks: torch.Tensor, block_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values in some blocks, ``[kv_head, token, head_dim]`` each, in the order of the blocks.

    ``blocks`` are one layer's, ``[block, kv_head, K|V, slot, head_dim]``.
    """
    found = blocks.index_select(0, block_ids).permute(2, 1, 0, 3, 4).flatten(2, 3)
    return found[0], found[1]


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that the system has given already; on the CPU in huge pages. Raises RuntimeError without memory."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    return zeros_in_huge_pages(math.prod(sizes) * dtype.itemsize).zero_().view(dtype).view(sizes)


def zeros_in_huge_pages(num_bytes: int) -> torch.Tensor:
    """So many bytes of zeros, from the start of a huge page on. Raises RuntimeError without memory.

    NIXL reads a cache through the kernel, which looks up each page: with pages of 4 KiB that takes as long as the copy
    (``docs/block-reads.md``). Attention over such pages takes up to a fifth longer.
    The memory comes from the system and has not been written yet: what an allocator had before has small pages already.
    A kernel without huge pages, or one where they are switched off, gives small ones.
    """
    if num_bytes > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:  # some systems give what they do not have
        raise RuntimeError(f"{num_bytes} bytes are more than this machine has")
    try:
        pages = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise RuntimeError(f"no memory for {num_bytes} bytes: {error}") from error
    with suppress(OSError, AttributeError):  # a kernel, or a system, that does not know the advice
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)  # keeps the pages
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes]


def _program(device: torch.device) -> Callable[..., None] | None:
    """The program that writes to a cache, see ``workers.rank.gpu.launches``; None: torch writes."""
    if gpu.missing(device):
        return None
    from baton_serve.workers.rank.gpu.launches import store

    return store


def count_blocks(spec: RankSpec, shape: CacheShape, device: torch.device) -> int:
    """The blocks that fit into this rank's memory budget, see ``RankSpec``. Raises CacheError if none does."""
    if spec.num_blocks is not None:
        return spec.num_blocks
    budget = _budget(spec, device)
    num_blocks = budget // shape.block_bytes
    if num_blocks < 1:
        raise CacheError(f"a KV cache of {budget} bytes has no room for one block of {shape.block_bytes} bytes")
    return num_blocks


def _budget(spec: RankSpec, device: torch.device) -> int:
    if spec.kv_cache_bytes is not None:
        return spec.kv_cache_bytes // spec.num_ranks
    if device.type != "cuda":
        return DEFAULT_CPU_BYTES // spec.num_ranks
    # Without this call, memory that was only needed for loading would count as used.
    torch.cuda.empty_cache()
    free, _total = torch.cuda.mem_get_info(device)
    return int(free * spec.gpu_memory_fraction)

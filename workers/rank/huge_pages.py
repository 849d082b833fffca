"""Asks the kernel for huge pages under weights, and under a KV cache that is in no file.

NIXL reads such a cache through the kernel, which looks up each page: with pages of 4 KiB that takes as long as the copy
(``docs/block-reads.md``). The processor looks up the pages of weights, all of which a decode step reads.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

from baton_serve.workers.transfer.mapped.shared_file import HUGE_PAGE_BYTES


def zeros_in_huge_pages(num_bytes: int) -> torch.Tensor:
    """So many bytes of zeros, from the start of a huge page on. Raises RuntimeError without memory.

    The memory comes from the system and has not been written yet: what an allocator had before has small pages already.
    A kernel without huge pages, or one where they are switched off, gives small ones.
    """
    try:
        pages = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise RuntimeError(f"no memory for {num_bytes} bytes: {error}") from error
    with suppress(OSError, AttributeError):  # a kernel, or a system, that does not know the advice
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)  # keeps the pages
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes]

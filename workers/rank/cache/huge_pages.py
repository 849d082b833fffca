"""Asks the kernel for huge pages under the KV cache.

Another process of this machine reads the cache through the kernel, which looks up each page: with pages of 4 KiB a read
has about half of the speed of a plain copy, with pages of 2 MiB the same speed (``docs/block-reads.md``).
"""

from __future__ import annotations

import ctypes

#: The size of a huge page on x86-64, and of the alignment that makes the most of them elsewhere.
HUGE_PAGE_BYTES = 2 * 2**20
_MADV_HUGEPAGE = 14


def padding_of(address: int) -> int:
    """Bytes from ``address`` to the next huge page."""
    return -address % HUGE_PAGE_BYTES


def advise_huge_pages(address: int, num_bytes: int) -> None:
    """Ask for huge pages; ``address`` begins one. To be called before the memory is written for the first time.

    A kernel without huge pages, or one where they are switched off, goes on with small ones.
    """
    libc = ctypes.CDLL(None)
    libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), _MADV_HUGEPAGE)

"""Has glibc's allocator keep memory that a process gives back and soon needs again.

By itself it returns large pieces, and free memory at the end of the heap, to the system, which clears every page when
it gives it out again.
"""

from __future__ import annotations

import ctypes

#: Names of mallopt's parameters, in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest piece that is part of the heap, and does not come from the system by itself; glibc takes at most 32 MiB.
MAX_PIECE_BYTES = 32 << 20


def keep_memory(max_bytes: int, max_piece_bytes: int) -> bool:
    """Keep up to ``max_bytes`` of free memory at the end of the heap, and have pieces of up to ``max_piece_bytes`` (at
    most ``MAX_PIECE_BYTES``) from the heap; False if the allocator is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # Both, as setting one ends glibc's own adjustment of the other.
    return all([mallopt(_M_MMAP_THRESHOLD, max_piece_bytes), mallopt(_M_TRIM_THRESHOLD, max_bytes)])

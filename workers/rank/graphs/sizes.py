"""For which numbers of rows and tokens there are graphs."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A larger decode step keeps the device busy for longer than Python takes to start it.
MAX_ROWS = 256
MAX_TOKENS = 2048


def graph_sizes(max_rows: int, *, is_quick: bool = False) -> Sequence[int]:
    """Powers of two to 8, then multiples of 8 to 64, then of 32; ``max_rows`` itself is the last, if not above 256.

    All numbers of rows if each is recorded once steps have needed it: on a CPU rows that fill up a step take time.
    """
    most = min(max_rows, MAX_ROWS)
    if is_quick:
        return range(1, most + 1)
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_ROWS, 32)]
    return [size for size in steps if size < most] + [most]


def prefill_sizes(max_tokens: int) -> Sequence[int]:
    """16, 32, then multiples of 64 to 512, of 128 to 1,024, of 256 to 2,048; ``max_tokens`` is the last, if below."""
    most = min(max_tokens, MAX_TOKENS)
    steps = [16, 32, *range(64, 512, 64), *range(512, 1024, 128), *range(1024, MAX_TOKENS, 256)]
    return [size for size in steps if size < most] + [most]


def fitting(sizes: Sequence[int], number: int) -> int | None:
    """The smallest of the ascending ``sizes`` that has room for so many; None if there is none."""
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None

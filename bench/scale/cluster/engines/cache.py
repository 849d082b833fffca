"""What a simulated engine has cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from baton_serve.router.placement.chunks import SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cache:
    """Chunks of prompts; the least recently used are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._sizes: OrderedDict[int, int] = OrderedDict()

    def take(self, chunks: Sequence[int]) -> int:
        """Add a prompt; returns how many of its chunks, from the first on, were cached before."""
        found = next((i for i, chunk in enumerate(chunks) if chunk not in self._sizes), len(chunks))
        for chunk, size in reversed(list(zip(chunks, SIZES, strict=False))):  # the end of a prompt is evicted first
            self._room -= 0 if chunk in self._sizes else size
            self._sizes[chunk] = size
            self._sizes.move_to_end(chunk)
        while self._room < 0:
            self._room += self._sizes.popitem(last=False)[1]
        return found

"""Which prompt prefixes each worker was sent, as chunk hashes. Bounded: the least recently sent are evicted first."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING

from router.placement.chunks import CHUNK_BYTES, SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixIndex:
    """Per worker the hashes (about 150 bytes each) of chunks of at most ``max_bytes``. A worker's key is ``key_of``.

    Invariant: a worker that has a prefix's hash has those of all shorter prefixes. A longer prefix is always touched
    before the shorter ones, so it is older and evicted first. This makes ``longest`` a binary search.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < CHUNK_BYTES:
            raise ValueError("an index needs room for a chunk")
        self._max_bytes = max_bytes
        self._sent: dict[str, _Sent] = {}

    def __len__(self) -> int:
        """Number of hashes."""
        return sum(len(sent.sizes) for sent in self._sent.values())

    def note(self, key: str, chunks: Sequence[int], max_bytes: int | None = None) -> None:
        """Note that the worker is sent a prompt of these chunks. ``max_bytes``: the worker's own, smaller bound."""
        if not chunks:
            return
        sent = self._sent.get(key)
        if sent is None:
            sent = self._sent[key] = _Sent()
        sizes, num_bytes = sent.sizes, sent.num_bytes
        for i in range(len(chunks) - 1, -1, -1):
            chunk = chunks[i]
            if chunk in sizes:
                sizes.move_to_end(chunk)
            else:
                num_bytes += SIZES[i]
                sizes[chunk] = SIZES[i]
        limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        while num_bytes > limit and len(sizes) > 1:
            num_bytes -= sizes.popitem(last=False)[1]
        sent.num_bytes = num_bytes

    def longest(self, key: str, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that the worker was sent before and probably still has."""
        sent = self._sent.get(key)
        if sent is None or not chunks:
            return 0
        sizes = sent.sizes
        if chunks[0] not in sizes:  # most prompts are new
            return 0
        return bisect_left(chunks, True, key=lambda chunk: chunk not in sizes)

    def forget(self, key: str) -> None:
        """Forget a worker that left."""
        self._sent.pop(key, None)


class _Sent:
    """What one worker was sent: the size of each chunk in bytes by its hash, the least recently sent first."""

    __slots__ = ("num_bytes", "sizes")

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self.num_bytes = 0

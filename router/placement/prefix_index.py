"""Which prompt prefixes each worker was sent, as chunk hashes. Bounded: the least recently sent are forgotten first."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from router.placement.chunks import CHUNK_BYTES, NUM_BYTES, num_chunks_in

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Parts in which a worker's prefixes are kept and forgotten. All but one of them surely count.
GENERATIONS = 4


class PrefixIndex:
    """Per worker the hashes (about 100 bytes each) of chunks of at most ``max_bytes``. A worker's key is ``key_of``.

    A prompt is added as a whole to the newest generation of its worker, and generations are forgotten as a whole: to
    order single chunks by their last use would cost most of a long prompt's placement. So each generation that has a
    prefix's hash has those of all shorter prefixes, which makes ``longest`` a binary search.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < CHUNK_BYTES:
            raise ValueError("an index needs room for a chunk")
        self._max_bytes = max_bytes
        self._sent: dict[str, _Sent] = {}

    def __len__(self) -> int:
        """Number of hashes."""
        return sum(len(one.chunks) for sent in self._sent.values() for one in sent.generations)

    def note(self, key: str, chunks: Sequence[int], max_bytes: int | None = None) -> None:
        """Note that the worker is sent a prompt of these chunks. ``max_bytes``: the worker's own, smaller bound."""
        if not chunks:
            return
        limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        if NUM_BYTES[len(chunks)] > limit:
            chunks = chunks[: max(1, num_chunks_in(limit))]
        sent = self._sent.get(key)
        if sent is None:
            sent = self._sent[key] = _Sent()
        sent.add(chunks, limit)

    def longest(self, key: str, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that the worker was sent before and probably still has."""
        sent = self._sent.get(key)
        if sent is None or not chunks:
            return 0
        return max([one.longest(chunks) for one in sent.generations if chunks[0] in one.chunks], default=0)

    def forget(self, key: str) -> None:
        """Forget a worker that left."""
        self._sent.pop(key, None)


class _Generation:
    """Prompts that were sent one after another."""

    __slots__ = ("chunks", "num_bytes")

    def __init__(self) -> None:
        self.chunks: set[int] = set()
        self.num_bytes = 0

    def longest(self, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that are known. Ask only if the first one is."""
        known = self.chunks
        return bisect_left(chunks, True, key=lambda chunk: chunk not in known)


class _Sent:
    """What one worker was sent, the newest generation last."""

    __slots__ = ("generations", "num_bytes")

    def __init__(self) -> None:
        self.generations = deque([_Generation()])
        self.num_bytes = 0

    def add(self, chunks: Sequence[int], limit: int) -> None:
        """Add a prompt, which may have ``limit`` bytes, and forget what is too much."""
        newest = self.generations[-1]
        all_bytes = NUM_BYTES[len(chunks)]
        num_bytes = all_bytes
        if chunks[0] in newest.chunks:
            num_bytes -= NUM_BYTES[newest.longest(chunks)]
        if newest.chunks and newest.num_bytes + num_bytes > limit // GENERATIONS:
            newest, num_bytes = _Generation(), all_bytes
            self.generations.append(newest)
        newest.chunks.update(chunks)
        newest.num_bytes += num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > limit and len(self.generations) > 1:
            self.num_bytes -= self.generations.popleft().num_bytes

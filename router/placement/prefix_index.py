"""Which prompt prefixes each worker was sent, as chunk hashes. Bounded: the least recently sent are forgotten first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from router.placement.chunks import CHUNK_BYTES, NUM_BYTES, num_chunks_in
from router.placement.prefix_holders import PrefixHolders

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

#: Parts in which a worker's prefixes are kept and forgotten. A prompt that is larger than a part is one by itself.
GENERATIONS: Final = 4


class PrefixIndex:
    """Per worker the hashes of chunks of ``max_bytes``. A worker's key is ``Worker.key``.

    A hash takes about 130 bytes, and 90 more if it is of the first chunk of a prompt.

    A prompt is added as a whole to the newest generation of its worker, and generations are forgotten as a whole: to
    order single chunks by their last use would cost most of a long prompt's placement. Only of a prompt that is a
    generation by itself the end goes first, as it does in an LRU cache. So each generation that has a prefix's hash has
    those of all shorter prefixes, which makes ``longest`` a binary search.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < CHUNK_BYTES:
            raise ValueError("an index needs room for a chunk")
        self._max_bytes = max_bytes
        self._sent: dict[str, _Sent] = {}
        #: For the first chunk of each prompt, the number of generations that have it, those of all workers together.
        self._num_with: dict[int, int] = {}
        self._holders: PrefixHolders | None = None

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
            sent = self._sent[key] = _Sent(self._num_with)
        forgotten = sent.add(chunks, limit)
        if self._holders is not None:
            self._holders.add(key, chunks)
            for some in forgotten:
                self._holders.drop(key, [chunk for chunk in some if not sent.has(chunk)])

    @property
    def holders(self) -> PrefixHolders:
        """Who holds which chunk. It is made at the first use and kept from then on.

        It takes time, and a third more memory: 126 and 161 bytes for each hash were measured without and with it, of
        long prompts.
        """
        if self._holders is None:
            self._holders = PrefixHolders()
            for key, sent in self._sent.items():
                for one in sent.generations:
                    for chunk in one.chunks:
                        self._holders.add_one(key, chunk)
        return self._holders

    def is_new(self, chunks: Sequence[int]) -> bool:
        """Whether no worker has even the first chunk: one look into memory, in place of one for each generation."""
        return not chunks or chunks[0] not in self._num_with

    def longest(self, key: str, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that the worker was sent before and probably still has."""
        sent = self._sent.get(key)
        if sent is None or not chunks:
            return 0
        most = 0
        for one in sent.generations:
            if chunks[0] in one.chunks:
                most = max(most, one.longest(chunks))
        return most

    def forget(self, key: str) -> None:
        """Forget a worker that left."""
        sent = self._sent.pop(key, None)
        if sent is None:
            return
        for one in sent.generations:
            sent.uncount(one)
            if self._holders is not None:
                self._holders.drop(key, one.chunks)


class _Generation:
    """Prompts that were sent one after another. ``only``: the chunks of the first one, as long as there is no other.

    ``firsts``: the first chunk of each prompt.
    """

    __slots__ = ("chunks", "firsts", "num_bytes", "only")

    def __init__(self, only: Sequence[int]) -> None:
        self.only = only
        self.firsts: list[int] = []
        self.chunks = set(only)
        self.num_bytes = NUM_BYTES[len(only)]

    def longest(self, chunks: Sequence[int]) -> int:
        """The number of chunks, from the first on, that are known. Ask only if the first one is."""
        known, most, too_many = self.chunks, 1, len(chunks) + 1
        while too_many - most > 1:
            middle = (most + too_many) // 2
            if chunks[middle - 1] in known:
                most = middle
            else:
                too_many = middle
        return most


class _Sent:
    """What one worker was sent, the newest generation last. ``num_with``: that of ``PrefixIndex``, kept up to date."""

    __slots__ = ("_num_with", "generations", "num_bytes")

    def __init__(self, num_with: dict[int, int]) -> None:
        self._num_with = num_with
        self.generations: deque[_Generation] = deque()
        self.num_bytes = 0

    def has(self, chunk: int) -> bool:
        """Whether a generation has the chunk."""
        return any(chunk in one.chunks for one in self.generations)

    def add(self, chunks: Sequence[int], limit: int) -> tuple[Collection[int], ...]:
        """Add a prompt, which has at most ``limit`` bytes or one chunk, and forget what is too much.

        Returns the chunks that it has forgotten, some of which it may still have in other generations.
        A part may be kept beyond ``limit``: when it goes, what was sent last still fills ``limit``.
        """
        part_bytes = limit // (GENERATIONS - 1)
        all_bytes = num_bytes = NUM_BYTES[len(chunks)]
        newest = self.generations[-1] if self.generations else None
        first = chunks[0]
        is_known = newest is not None and first in newest.chunks
        if newest is not None and is_known:
            num_bytes -= NUM_BYTES[newest.longest(chunks)]
        if newest is None or newest.num_bytes + num_bytes > part_bytes:
            newest, is_known = _Generation(chunks), False
            self.generations.append(newest)
            self.num_bytes += all_bytes
        else:
            newest.chunks.update(chunks)
            newest.num_bytes += num_bytes
            newest.only = ()
            self.num_bytes += num_bytes
        if not is_known:
            newest.firsts.append(first)
            self._num_with[first] = self._num_with.get(first, 0) + 1
        forgotten: tuple[Collection[int], ...] = ()
        while self.num_bytes > limit + part_bytes and len(self.generations) > 1:
            forgotten += (self._forget_of(self.generations[0], self.num_bytes - limit - part_bytes),)
        return forgotten

    def uncount(self, one: _Generation) -> None:
        """Note that its prompts are forgotten."""
        for first in one.firsts:
            left = self._num_with[first] - 1
            if left:
                self._num_with[first] = left
            else:
                del self._num_with[first]

    def _forget_of(self, oldest: _Generation, excess: int) -> Collection[int]:
        left = num_chunks_in(max(0, oldest.num_bytes - excess)) if oldest.only else 0
        before = oldest.num_bytes
        if not left:
            self.uncount(self.generations.popleft())
            self.num_bytes -= before
            return oldest.chunks
        forgotten = oldest.only[left:]
        oldest.chunks.difference_update(forgotten)
        oldest.only = oldest.only[:left]
        oldest.num_bytes = NUM_BYTES[left]
        self.num_bytes -= before - oldest.num_bytes
        return forgotten

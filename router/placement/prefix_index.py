"""Which prompt prefixes each worker was sent, as chunk hashes. Bounded: the least recently sent are forgotten first."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from baton_serve.router.placement.chunks import CHUNK_BYTES, NUM_BYTES, num_chunks_in
from baton_serve.router.placement.prefix_holders import PrefixHolders
from baton_serve.router.placement.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from baton_serve.router.placement.prefix_tree import Run

#: Parts in which a worker's prefixes are kept and forgotten. A prompt that is larger than a part is one by itself.
GENERATIONS: Final = 4


class PrefixIndex:
    """Per worker the hashes of chunks of ``max_bytes``. A worker's key is ``Worker.key``.

    A hash takes about 45 bytes, and a prompt 150 more.

    A prompt is added as a whole to the newest generation of its worker, and generations are forgotten as a whole: to
    order single chunks by their last use would cost most of a long prompt's placement. But where a generation is one
    prompt or one conversation, its last chunks are forgotten first, as in an LRU cache. In both cases a generation that
    has a prefix's hash has the hashes of all shorter prefixes.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < CHUNK_BYTES:
            raise ValueError("an index needs room for a chunk")
        self._max_bytes = max_bytes
        self._sent: dict[str, _Sent] = {}
        #: For the first chunk of each prompt, the number of generations of all workers that have it.
        self._num_with: dict[int, int] = {}
        self._holders: PrefixHolders | None = None

    def __len__(self) -> int:
        """Number of hashes."""
        return sum(len(one.chunks()) for sent in self._sent.values() for one in sent.generations)

    def note(self, key: str, chunks: Run, max_bytes: int | None = None) -> None:
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
            for tree in forgotten:
                for first in tree.firsts():
                    self._holders.drop(key, sent.not_kept(first, tree.behind(first)))

    @property
    def holders(self) -> PrefixHolders:
        """Which workers hold each chunk. The table is built at its first use, and kept up to date from then on.

        The table takes time, and as much memory again as the index: with long prompts 46 bytes for each hash were
        measured without the table, and 89 with it.
        """
        if self._holders is None:
            self._holders = PrefixHolders()
            for key, sent in self._sent.items():
                for one in sent.generations:
                    for chunk in one.chunks():
                        self._holders.add_one(key, chunk)
        return self._holders

    def is_new(self, chunks: Run) -> bool:
        """Whether no worker has even the first chunk: one look into memory, in place of one for each generation."""
        return not chunks or chunks[0] not in self._num_with

    def longest(self, key: str, chunks: Run) -> int:
        """The number of chunks, from the first on, that the worker was sent before and probably still has."""
        sent = self._sent.get(key)
        if sent is None or not chunks:
            return 0
        most = 0
        for one in sent.generations:
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
                self._holders.drop(key, one.chunks())


class _Sent:
    """What one worker was sent, the newest generation last. ``num_with``: the index's, kept up to date."""

    __slots__ = ("_num_with", "generations", "num_bytes")

    def __init__(self, num_with: dict[int, int]) -> None:
        self._num_with = num_with
        self.generations: deque[PrefixTree] = deque()
        self.num_bytes = 0

    def not_kept(self, first: int, some: Collection[int]) -> Collection[int]:
        """The chunks of ``some``, from prompts that begin with ``first``, that no generation has."""
        for one in self.generations:
            kept = one.behind(first)
            if kept:  # of most prompts nothing is
                some = set(some).difference(kept)
        return some

    def add(self, chunks: Run, limit: int) -> list[PrefixTree]:
        """Add a prompt, which has at most ``limit`` bytes or one chunk, and forget what is too much.

        Returns the prompts of which it has forgotten something, though it may still have all of it in other
        generations. A part may be kept beyond ``limit``: when it goes, what was sent last still fills ``limit``.
        """
        part_bytes = limit // (GENERATIONS - 1)
        all_bytes = num_bytes = NUM_BYTES[len(chunks)]
        newest = self.generations[-1] if self.generations else None
        num_known = 0
        if newest is not None:
            num_known = newest.longest(chunks)
            num_bytes -= NUM_BYTES[num_known]
        if newest is None or newest.num_bytes + num_bytes > part_bytes:
            newest, num_known, num_bytes = PrefixTree(), 0, all_bytes
            self.generations.append(newest)
        newest.add(chunks)
        newest.num_bytes += num_bytes
        self.num_bytes += num_bytes
        if not num_known:
            first = chunks[0]
            self._num_with[first] = self._num_with.get(first, 0) + 1
        forgotten: list[PrefixTree] = []
        while self.num_bytes > limit + part_bytes and len(self.generations) > 1:
            forgotten.append(self._forget_of(self.generations[0], self.num_bytes - limit - part_bytes))
        return forgotten

    def uncount(self, one: PrefixTree) -> None:
        """Note that its prompts are forgotten."""
        for first in one.firsts():
            left = self._num_with[first] - 1
            if left:
                self._num_with[first] = left
            else:
                del self._num_with[first]

    def _forget_of(self, oldest: PrefixTree, excess: int) -> PrefixTree:
        only = oldest.only
        left = num_chunks_in(max(0, oldest.num_bytes - excess)) if only else 0
        if left:
            kept = self.generations[0] = PrefixTree()
            kept.add(only[:left])
            kept.num_bytes = NUM_BYTES[left]
        else:
            self.uncount(self.generations.popleft())
        self.num_bytes -= oldest.num_bytes - NUM_BYTES[left]
        return oldest

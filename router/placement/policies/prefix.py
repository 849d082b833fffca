"""Picks the worker most likely to have the prompt's prefix in its cache, unless it is much busier than another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from typing import Final

from baton_serve.router.placement.chunks import NUM_BYTES
from baton_serve.router.placement.offer import Offer
from baton_serve.router.placement.policies.least_loaded import LeastLoaded, take_turn
from baton_serve.router.placement.ports import OnGone
from baton_serve.router.placement.prefix_index import PrefixIndex
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN, Prompt
from baton_serve.router.pool import Worker

# SGLang's router has the same rule; these are the defaults of its ``RouterArgs`` (sglang_router/router_args.py):
# cache_threshold 0.3, balance_rel_threshold 1.5, balance_abs_threshold 64 requests. SGLang's 64 is for engines of any
# size; Baton's report their limit, so here it is a fraction: 64 of vLLM's default of 256 sequences (max_num_seqs).
#: The smallest fraction of a prompt that counts as a match; shorter prefixes are soon on all workers anyway.
LEAST_MATCH: Final = 0.3
#: A worker is too busy if the fraction of its limit in use exceeds the lowest one by more than MAX_GAP (or by more than
#: MAX_GAP_REQUESTS, if its limit is large, or assumed because the worker does not report one),
MAX_GAP: Final = 0.25
MAX_GAP_REQUESTS: Final = 64
#: and is also more than this many times the lowest.
MAX_RATIO: Final = 1.5
#: Text remembered per worker, bytes: about two million tokens.
MAX_BYTES: Final = 8 << 20


class Prefix:
    """Decides by what this router sent, not by reports: that costs workers nothing, and is right for LRU caches."""

    def __init__(self, on_gone: OnGone) -> None:
        self.index = PrefixIndex(MAX_BYTES)
        self._least_loaded = LeastLoaded()
        on_gone.append(self.index.forget)

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """See ``Policy``."""
        chunks = prompt.chunks
        worker = self._least_loaded.pick(self._best(workers, chunks), prompt)
        self.index.note(worker.key, chunks, _capacity(worker))
        return worker

    def pick_ranked(self, offer: Offer, prompt: Prompt) -> Worker | None:
        """See ``PickRanked``."""
        least_loaded = next(iter(offer), None)
        if least_loaded is None:
            return None
        chunks = prompt.chunks
        chosen = self._longest_match(offer, chunks, least_loaded.usage.share_in_use) or least_loaded
        take_turn(chosen)
        self.index.note(chosen.key, chunks, _capacity(chosen))
        return chosen

    def holding(self, workers: Sequence[Worker], prompt: Prompt, num_missing: int) -> list[Worker]:
        """The workers, none too busy, that have part of the prompt and lack under ``num_missing`` of its tokens."""
        chunks = prompt.chunks
        if not chunks or not workers:
            return []
        matches = self._matches(workers, chunks)
        return [
            worker
            for worker, match in zip(workers, matches, strict=True)
            if match and prompt.num_tokens_behind(match) < num_missing
        ]

    def _best(self, workers: Sequence[Worker], chunks: tuple[int, ...]) -> Sequence[Worker]:
        """The workers that are not too busy and have the longest match; all workers if no match is long enough."""
        if not chunks or len(workers) == 1:
            return workers
        # A loop, and indices: compiled, they are several times as fast as ``max`` and ``zip``.
        most = 0
        matches = self._matches(workers, chunks)
        for match in matches:
            if match > most:
                most = match
        if NUM_BYTES[most] < LEAST_MATCH * NUM_BYTES[len(chunks)]:
            return workers
        return [worker for at, worker in enumerate(workers) if matches[at] == most]

    def _longest_match(self, offer: Offer, chunks: tuple[int, ...], lowest: float) -> Worker | None:
        """The least loaded of the not too busy workers with the longest match. ``lowest``: see ``_too_busy``."""
        holders = self.index.holders
        shortest = bisect_left(NUM_BYTES, LEAST_MATCH * NUM_BYTES[len(chunks)])
        seen: Set[str] = frozenset()
        for num in range(holders.longest(chunks), max(shortest, 1) - 1, -1):
            keys = holders.of(chunks[num - 1])
            if len(keys) > len(seen):  # else all were looked at for more chunks
                for worker in offer.known_by(keys - seen):
                    if not _too_busy(worker, lowest):
                        return worker
                seen = keys
        return None

    def _matches(self, workers: Sequence[Worker], chunks: tuple[int, ...]) -> list[int]:
        """For each worker the number of chunks that it was sent before; 0 if it is too busy."""
        index = self.index
        if index.is_new(chunks):  # as most prompts are
            return [0] * len(workers)
        matches = []
        has_any = False
        for worker in workers:
            match = index.longest(worker.key, chunks)
            has_any = has_any or match > 0
            matches.append(match)
        if not has_any:
            return matches
        lowest = workers[0].usage.share_in_use
        for worker in workers:
            used = worker.usage.share_in_use
            if used < lowest:
                lowest = used
        for at, worker in enumerate(workers):
            if matches[at] and _too_busy(worker, lowest):
                matches[at] = 0
        return matches


def _too_busy(worker: Worker, lowest: float) -> bool:
    """``lowest``: the smallest fraction of a limit in use, of all workers."""
    used = worker.usage.share_in_use
    return used > MAX_RATIO * lowest and used - lowest > min(MAX_GAP, MAX_GAP_REQUESTS / worker.usage.limit)


def _capacity(worker: Worker) -> int | None:
    """Bytes of text that fit into the worker's cache; what is older is surely evicted. None: not known."""
    return worker.usage.num_blocks * worker.usage.block_size * BYTES_PER_TOKEN or None

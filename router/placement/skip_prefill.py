"""Which requests skip P: a D prefills them itself, because moving the blocks is not worth it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from baton_serve.router.placement.available import Ahead, in_question, placeable
from baton_serve.router.placement.policies.affinity import Affinity
from baton_serve.router.placement.prompt import Prompt
from baton_serve.router.pool import Worker


class SkipPrefill(StrEnum):
    """Why a request skips P."""

    #: Its prompt is short.
    SHORT = "short"
    #: A decode worker has most of its prompt in its cache.
    CACHED = "cached"
    #: No prefill worker can be reached.
    UNREACHABLE = "unreachable"


class SkipPrefillRule:
    """Skips P for prompts of fewer than ``min_prefill_tokens``, or if a D lacks fewer than ``min_uncached_tokens``.

    0 switches the respective rule off.
    """

    def __init__(self, min_prefill_tokens: int, min_uncached_tokens: int, caches: Affinity | None) -> None:
        self._min_prefill_tokens = min_prefill_tokens
        self._min_uncached_tokens = min_uncached_tokens if caches is not None else 0
        self._caches = caches
        self.is_off = not (self._min_prefill_tokens or self._min_uncached_tokens)

    def workers_for(self, prompt: Prompt, workers: Sequence[Worker]) -> tuple[SkipPrefill, list[Worker]] | None:
        """Why the request skips P, and the D with room that may take it. None: P is next, also if no D has room now.

        In that last case no time is lost: P computes the prompt while the request would wait for a D.
        """
        is_short = prompt.num_tokens < self._min_prefill_tokens
        if not is_short and not self._min_uncached_tokens:
            return None
        found = placeable(in_question(workers, frozenset()), prompt.need.fits, Ahead(), None)
        if not is_short and self._caches is not None:
            found = self._caches.holding(found, prompt, self._min_uncached_tokens)
        return (SkipPrefill.SHORT if is_short else SkipPrefill.CACHED, found) if found else None

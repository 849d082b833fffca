"""Picks the D that decoded the conversation's earlier turn: D need not read blocks that it still has."""

from __future__ import annotations

from collections.abc import Sequence

from baton_serve.router.placement.offer import Offer
from baton_serve.router.placement.policies.prefix import Prefix
from baton_serve.router.placement.ports import OnGone
from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.pool import Worker


class Affinity:
    """``Prefix`` over the prompts that decode workers were sent, since a later turn begins with the earlier one."""

    def __init__(self, on_gone: OnGone) -> None:
        self._prefix = Prefix(on_gone)

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """See ``Policy``."""
        return self._prefix.pick(workers, prefilled.prompt)

    def pick_ranked(self, offer: Offer, prefilled: Prefilled) -> Worker | None:
        """See ``PickRanked``."""
        return self._prefix.pick_ranked(offer, prefilled.prompt)

    def holding(self, workers: Sequence[Worker], prompt: Prompt, num_missing: int) -> list[Worker]:
        """The workers, none too busy, that have part of the prompt and lack under ``num_missing`` of its tokens."""
        return self._prefix.holding(workers, prompt, num_missing)

"""The interface of a policy: an object with one method. It is offered only workers that may be picked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton_serve.router.placement.offer import Offer
    from baton_serve.router.placement.prompt import Prefilled, Prompt
    from baton_serve.router.pool import Worker

#: Listeners, called with the engine id of a worker that left. A policy with state adds one, to forget that worker.
OnGone = list[Callable[[str], None]]


class PickPrefill(Protocol):
    """Chooses the worker that prefills. The request is always sent to the returned one, so a policy may record it."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        """One of ``workers``: at least one, all reachable and with room."""


class PickDecode(Protocol):
    """Chooses the worker that decodes, after the prompt's blocks exist."""

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """One of ``workers``: at least one, all reachable, with room, and able to read the blocks."""


class PickRanked(Protocol):
    """What a policy may have besides ``pick``, to choose among many workers without looking at all of them.

    It has to choose the worker that ``pick`` would choose among those on offer. ``choose`` calls it for routes of
    which a ranking is kept; a policy without it is offered a sequence, whose length it then costs.
    """

    def pick_ranked(self, offer: Offer, about: Any, /) -> Worker | None:
        """As ``pick``, whose second argument ``about`` is. None: no worker is offered."""

"""The interface of a policy: an object with one method. It is offered only workers that may be picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from baton_serve.router.placement.offer import Offer
from baton_serve.router.placement.prompt import Prefilled, Prompt
from baton_serve.router.pool import Worker

#: Listeners, called with the engine id of a worker that left. A policy with state adds one, to forget that worker.
OnGone = list[Callable[[str], None]]


AboutT = TypeVar("AboutT", contravariant=True)


class Policy(Protocol[AboutT]):
    """Chooses a worker. The request is always sent to that worker, so a policy may record it. A policy may also
    have ``pick_ranked``: see ``PickRanked``.
    """

    def pick(self, workers: Sequence[Worker], about: AboutT, /) -> Worker:
        """One of ``workers``: at least one, all reachable, with room, and, for decode, able to read the blocks.

        ``about``: what the policy may know about the request.
        """


#: Chooses the worker that prefills, and the worker that decodes, after the prompt's blocks exist.
PickPrefill: TypeAlias = "Policy[Prompt]"
PickDecode: TypeAlias = "Policy[Prefilled]"


class PickRanked(Protocol):
    """What a policy may have besides ``pick``, to choose among many workers without looking at all of them.

    ``pick_ranked`` has to choose the worker that ``pick`` would choose of the workers on offer. ``choose`` calls it for
    routes of which a ranking is kept; a policy without ``pick_ranked`` is offered a sequence, and looks at all of it.
    """

    def pick_ranked(self, offer: Offer, about: Any, /) -> Worker | None:
        """As ``pick``, whose second argument ``about`` is. None: no worker is offered."""

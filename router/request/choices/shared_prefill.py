"""The blocks that the first choice of a prompt leaves for the others of the same prompt.

One choice leads: it has P compute the prompt, and its first token is P's. The others wait for the blocks; each is given
to a D of its own, which samples the first token of that choice too. If there is nothing to share, each of the others
goes its own way, and P finds the prompt in its cache. The lease on the blocks is renewed until the last choice has read
or given it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.protocol.choice import Choice
from baton_serve.router.renewal.port import HeldLease

T = TypeVar("T")
#: The number of the reader that leads.
LEAD = 0


class SharedPrefill(Generic[T]):
    """What the choices of one prompt share. Each choice calls ``join`` at most once, and ``leave`` once.

    The lead calls ``settle`` in between, when it knows what there is to read.
    """

    __slots__ = ("_is_settled", "_num_joined", "_offer", "_on_empty", "num_in")

    def __init__(self, num_choices: int) -> None:
        #: The choices that have not left: they read what is shared, or may come to read it.
        self.num_in = num_choices
        self._num_joined = 0
        self._is_settled = asyncio.Event()
        self._offer: T | None = None
        self._on_empty: Callable[[], object] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not settled what there is to read."""
        return not self._is_settled.is_set()

    def join(self) -> int:
        """Returns the choice's number as a reader. ``LEAD``: it has P prefill. The others wait for ``offer``."""
        number = self._num_joined
        self._num_joined += 1
        return number

    def settle(self, offer: T | None, on_empty: Callable[[], object] | None = None) -> None:
        """Let the others read, or (None) go their own ways. Only the first call counts.

        ``on_empty`` is called when all choices have left: none will take the offer any more.
        """
        if self.is_open:
            self._offer, self._on_empty = offer, on_empty
            self._is_settled.set()

    async def offer(self) -> T | None:
        """What there is to read, once that is settled."""
        await self._is_settled.wait()
        return self._offer

    def leave(self) -> None:
        """A choice has taken what it needs, or goes its own way. The lead has settled before."""
        self.num_in -= 1
        if not self.num_in:
            self._offer = None
            if self._on_empty is not None:
                self._on_empty()


class ChoiceRole:
    """The role of a choice among the choices of its request. ``shared`` None: it shares no blocks with the others."""

    __slots__ = ("choice", "is_named", "reader", "shared")

    def __init__(self, choice: Choice, shared: SharedPrefill[Any] | None) -> None:
        self.choice = choice
        self.shared = shared
        #: Its number among the readers; None: it has not joined them.
        self.reader: int | None = None
        #: Whether the worker that answers now writes the choice's index into its events. Other workers write 0.
        self.is_named = False

    @property
    def num_readers(self) -> int:
        """For how many choices P is to keep the blocks of a prefill that is sent now."""
        shared = self.shared
        return shared.num_in if shared is not None and self.reader == LEAD and shared.is_open else 1

    def leave(self) -> None:
        """Take nothing more of what is shared. Later calls do nothing."""
        shared, self.shared = self.shared, None
        if shared is not None:
            if self.reader == LEAD:
                shared.settle(None)
            shared.leave()


class SharedLease:
    """A lease with several holders. ``lease`` is set once P's answer is known to grant one."""

    def __init__(self) -> None:
        self.lease: HeldLease | None = None
        self._is_over = False
        self._holders: dict[LeaseShare, Callable[[LeaseState], None]] = {}

    def over(self, state: LeaseState) -> None:
        """P no longer keeps the blocks: each holder is told."""
        self._is_over = True
        for tell in list(self._holders.values()):
            tell(state)

    def share(self, on_over: Callable[[LeaseState], None]) -> LeaseShare | None:
        """A part in the lease, or None if it is over. ``on_over`` is called when it is over."""
        assert self.lease is not None, "nothing is shared before P has granted it"
        if self._is_over:
            return None
        share = LeaseShare(self, self.lease)
        self._holders[share] = on_over
        return share

    def leave(self, share: LeaseShare) -> bool:
        """A holder needs the blocks no more. Returns True for the last holder, which ends the lease."""
        if self._holders.pop(share, None) is None or self._holders:
            return False
        assert self.lease is not None
        self._is_over = True
        self.lease.release()
        return True


class LeaseShare:
    """``HeldLease`` (``router/renewal/port.py``) of one choice."""

    is_shared = True

    def __init__(self, shared: SharedLease, lease: HeldLease) -> None:
        self._all = shared
        self.engine_id, self.lease_id = lease.engine_id, lease.lease_id
        self.remaining_ms, self.given = lease.remaining_ms, lease.given

    def __repr__(self) -> str:
        return f"<LeaseShare of {self.lease_id}>"

    def confirmed(self) -> bool:
        """Note that D has read, or needs the blocks no more. Returns whether that was the last holder."""
        return self._all.leave(self)

    release = confirmed

"""The blocks that the first choice of a prompt leaves for the others of the same prompt. Pure but for the future.

One choice leads: it has P compute the prompt, and its first token is P's. The others wait for the blocks; each is given
to a D of its own, which samples the first token of that choice too. If there is nothing to share, each of the others
goes its own way, and P finds the prompt in its cache.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from core.protocol.choice import Choice

T = TypeVar("T")
#: The number of the reader that leads.
LEAD = 0


class SharedPrefill(Generic[T]):
    """One prompt's. Each choice calls ``join`` once; the lead calls ``settle`` when it knows what there is to read."""

    __slots__ = ("_num_joined", "_offer", "num_choices")

    def __init__(self, num_choices: int) -> None:
        self.num_choices = num_choices
        self._num_joined = 0
        self._offer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Whether it is not settled what there is to read."""
        return not self._offer.done()

    def join(self) -> int:
        """Returns the number of the reader: ``LEAD``, or of one that waits for ``offer``."""
        number = self._num_joined
        self._num_joined += 1
        return number

    def settle(self, offer: T | None) -> None:
        """Let the others read, or (None) go their own ways. Only the first call counts."""
        if not self._offer.done():
            self._offer.set_result(offer)

    async def offer(self) -> T | None:
        """What there is to read, once that is settled."""
        return await asyncio.shield(self._offer)


class ChoiceRole:
    """What a choice is to the others of its request. ``shared`` None: it shares no blocks with them."""

    __slots__ = ("choice", "reader", "shared")

    def __init__(self, choice: Choice, shared: SharedPrefill[Any] | None) -> None:
        self.choice = choice
        self.shared = shared
        #: Its number among the readers; None: it has not joined them.
        self.reader: int | None = None

    @property
    def num_readers(self) -> int:
        """For how many choices P is to keep the blocks of a prefill that is sent now."""
        shared = self.shared
        return shared.num_choices if shared is not None and self.reader == LEAD and shared.is_open else 1

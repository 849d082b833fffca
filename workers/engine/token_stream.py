"""The tokens of one sequence, queued for one consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from baton_serve.workers.engine.api import EngineError, PromptOutput, TokenOutput

if TYPE_CHECKING:
    from collections.abc import Callable


class QueuedTokens:
    """Implements ``api.TokenStream``. The queue's length is bounded by the tokens of the sequence.

    ``on_close`` is called once, if the consumer closes the stream before its end.
    """

    def __init__(self, on_close: Callable[[], None] = lambda: None) -> None:
        self._on_close = on_close
        self._items: deque[TokenOutput | PromptOutput | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        #: Whether the last item was put or the stream was closed; no further item is accepted.
        self._complete = False
        self.is_refused = False

    @classmethod
    def refused(cls, error: EngineError) -> QueuedTokens:
        """The stream of a sequence that never started."""
        stream = cls()
        stream.is_refused = True
        stream.put(error)
        return stream

    def put(self, item: TokenOutput | PromptOutput | EngineError) -> None:
        """Add an item. An error, or an output with ``finish``, is the last item; later ones are dropped."""
        if self._complete:
            return
        self._items.append(item)
        self._complete = isinstance(item, EngineError) or item.finish is not None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> QueuedTokens:
        return self

    async def __anext__(self) -> TokenOutput | PromptOutput:
        while not self._items:
            if self._complete:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("a token stream has one consumer")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, EngineError):
            raise item
        return item

    async def aclose(self) -> None:
        """Abort the sequence unless it has ended, and drop the tokens that were not consumed. Never suspends."""
        self._items.clear()
        if self._complete:
            return
        self._complete = True
        self._wake()
        self._on_close()

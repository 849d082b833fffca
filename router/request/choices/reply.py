"""What each choice of a request writes, on its way to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from baton_serve.core.net.answers import Header
from baton_serve.router.request.choices.merging import ChoiceEvents
from baton_serve.router.request.choices.shared_prefill import ChoiceRole
from baton_serve.router.request.reply import MAX_UNSENT_BYTES, ClientReply, Reply
from baton_serve.router.upstream.whole_answers import too_large


class AnswerBudget:
    """Bounds the bytes of a request's unstreamed answers, which are kept until the last one has come."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Take room for one more answer. Raises UpstreamError if there is not enough."""
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            what = "The answers are together larger than this router takes of one that is not streamed"
            raise too_large(what, self._max_bytes)


class ChoiceReply(Reply):
    """Takes what one choice writes.

    The events of all choices go to the client as they come, each choice's in order. What a choice answers in one piece
    is kept in ``body`` until all have answered.
    """

    def __init__(self, reply: ClientReply, events: ChoiceEvents, room: AnswerBudget, role: ChoiceRole) -> None:
        """``role``: says whether the worker that answers now writes the choice's index into its events."""
        super().__init__(reply.client_id)
        self._reply = reply
        #: What has come of the choice's stream.
        self.events = events
        self._room = room
        self._role = role
        self._unsent = b""
        self.body = b""

    @property
    def is_begun(self) -> bool:
        return self._reply.started

    def put(self, data: bytes, *, content: bool = True) -> bool:
        data = self._unsent + self.events.take(data, named=self._role.is_named)
        if not (self.started or content) and len(data) <= MAX_UNSENT_BYTES:
            self._unsent = data
            return True
        self._unsent = b""
        if not data:
            return True
        if not self.started:
            self.started = True
            self.first_content_s = asyncio.get_running_loop().time()
        return self._reply.put(data)

    def put_comments(self, data: bytes) -> bool:
        return self._reply.put_comments(data)

    async def drain(self) -> None:
        await self._reply.drain()

    def forget(self) -> None:
        self._unsent = b""

    async def end(self) -> None:
        """The choice's stream is complete; that of all choices is not."""

    def end_now(self) -> None:
        """As ``end``."""

    async def whole(self, _status: int, _content_type: bytes, body: bytes, _headers: Iterable[Header] = ()) -> None:
        """Keep the choice's answer for the one of all choices. Raises UpstreamError if all are too large together."""
        self._room.take(len(body))
        self.started = True
        self.body = body

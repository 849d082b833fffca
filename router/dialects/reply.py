"""Writes an answer in the client's dialect, in the place of ``ClientReply``, so that no step has to know of it."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.net.answers import JSON, Header, retry_after
from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.dialects.known import DIALECTS, Dialect
from baton_serve.router.dialects.port import Translation
from baton_serve.router.dialects.stream import DialectStream
from baton_serve.router.request.reply import ClientReply, client_id
from baton_serve.router.upstream.worker_errors import PassedOnError


def reply_to(call: HttpCall, request_id: str, translation: Translation | None) -> ClientReply:
    """The reply to a request. ``translation`` None: it needs none."""
    dialect, theirs = DIALECTS.get(call.path), client_id(call.headers)
    if dialect is None:
        return ClientReply(call, request_id, theirs)
    if translation is None:
        return PassedReply(call, request_id, theirs, dialect)
    return DialectReply(call, request_id, theirs, dialect, translation)


def refuse(call: HttpCall, request_id: str, error: ApiError) -> None:
    """Answer a request that never began, in the shape of its path."""
    reply_to(call, request_id, None).refuse(error)


class PassedReply(ClientReply):
    """An answer that needs no translation: the worker speaks the dialect itself, or the answer is an error."""

    def __init__(self, call: HttpCall, request_id: str, client_id: str, dialect: Dialect) -> None:
        super().__init__(call, request_id, client_id)
        self._dialect = dialect
        if dialect.id_header:
            self._id_lines += b"%b: %b\r\n" % (dialect.id_header, request_id.encode("ascii"))

    def _error_body(self, error: ApiError) -> bytes:
        if isinstance(error, PassedOnError):  # it is in the dialect already
            return super()._error_body(error)
        return self._dialect.error(error, self._request_id)


class DialectReply(PassedReply):
    """One answer, whole or streamed."""

    def __init__(
        self, call: HttpCall, request_id: str, client_id: str, dialect: Dialect, translation: Translation
    ) -> None:
        super().__init__(call, request_id, client_id, dialect)
        self._translation = translation
        #: None: nothing has been streamed.
        self._stream: DialectStream | None = None

    def put(self, data: bytes, *, content: bool = True) -> bool:
        """See ``ClientReply``. ``data``: events of a chat. Raises UpstreamError."""
        events = self._stream_now().feed(data)
        if not events and (self.started or not self._unsent):
            return not self._call.is_blocked
        return super().put(events, content=content)

    def forget(self) -> None:
        super().forget()
        self._stream = None

    async def whole(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header] = ()) -> None:
        """See ``ClientReply``. ``body``: the answer of a chat. Raises UpstreamError."""
        await super().whole(status, JSON, self._translation.whole(body))

    async def _tell(self, error: ApiError) -> None:
        if not self.started:
            body = self._error_body(self._dialect.names.renamed(error))
            await super().whole(error.status, JSON, body, retry_after(error))
            return
        await self.drain()
        super().put(self._stream_now().fail(error))
        await self.end()

    def _stream_now(self) -> DialectStream:
        if self._stream is None:
            self._stream = DialectStream(self._translation, self._dialect.names)
        return self._stream

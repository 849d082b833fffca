"""One connection of a client, which carries one request at a time.

A byte that comes when no answer is due ends the connection: it cannot be known which request that byte answers, and it
must never be taken for the answer to the next one.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias, cast

import httptools

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.chunks import whole_chunks
from baton_serve.core.net.client.errors import CallError, ConnectionLost, NotHttp
from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.net.known_head import KnownHead
from baton_serve.core.net.late_writes import LateWrites, Writer, write
from baton_serve.core.net.sockets import num_acknowledged, set_tcp_options

#: How the kernel notices a server that vanished without closing (host or network down): the kernel probes a silent
#: connection after 15 s, then every 5 s, and gives up when what was sent has not been acknowledged for 30 s.
_TCP_OPTIONS: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_USER_TIMEOUT": 30_000}
#: A body in pieces, of which none is empty: so a long one that several requests have in common is never copied.
Pieces: TypeAlias = "tuple[bytes | memoryview, ...]"
#: Requests of fewer bytes are joined before they are written: a system call for one piece costs less than for several.
_JOINED_BYTES: Final = 16 << 10
#: In place of an attribute's name: the header says where an answer ends; the header is only looked at.
_FRAME: Final = ""
_LOOKED_AT: Final = "-"
#: Codings of an answer that is passed on as it comes: clients are not told of any other.
_PLAIN: Final = (b"chunked", b"identity")
#: The headers that are read, each with the attribute of ``HttpAnswer`` that keeps its value.
_KEPT: Final = {
    b"content-length": _FRAME,
    b"transfer-encoding": _FRAME,
    b"content-encoding": _LOOKED_AT,
    b"retry-after": "retry_after",
    b"content-type": "content_type",
    b"metadata": "metadata",
}
#: The beginning of an answer whose head is learned.
_OK: Final = b"HTTP/1.1 200 "
#: Bytes of status line and headers, of trailers, and of anything else that comes without a byte of a body.
MAX_HEAD_BYTES: Final = 64 << 10


class _Refused(Exception):
    """What comes is no answer to the request, or none that was asked for. The message is for logs and clients."""


class _LearnedAnswer:
    """The head of an answer with status 200 that came whole, and the headers of it that are kept."""

    __slots__ = ("head", "kept", "names")

    def __init__(self) -> None:
        self.head = KnownHead()
        self.kept = (b"", b"", b"")
        #: The names in the head that the parser reads, if that is to be learned.
        self.names: list[bytes] | None = None


class Connection(Writer):
    """A connection that puts itself into ``everyone`` while it is open, and into ``idle`` while it can be used again.

    Call ``send`` with one request, and with the next one once the answer is complete. httptools calls the ``on_``
    methods. Loops are given ``as_protocol``: mypyc makes no native class of a subclass of ``asyncio.Protocol``.
    """

    __slots__ = (
        "_answer",
        "_everyone",
        "_is_at_chunk",
        "_is_between",
        "_late_writes",
        "_learned",
        "_num_earlier_bytes",
        "_num_head_bytes",
        "_num_sent_bytes",
        "_parser",
        "_parts",
        "_paused",
        "_status",
        "_transport",
        "_unsent",
        "_until_eof",
        "call_later",
        "idle",
        "idle_since_s",
        "loop",
    )

    def __init__(
        self,
        idle: list[Connection],
        everyone: set[Connection],
        timeouts: Timeouts | None = None,
        late_writes: LateWrites | None = None,
    ) -> None:
        """Several connections may share their ``timeouts``, and ``late_writes``, without which nothing is put off."""
        self.loop = asyncio.get_running_loop()
        #: See ``answer.Source``.
        self.call_later = (timeouts or Timeouts(self.loop)).call_later
        self._late_writes = late_writes
        #: A request that is not written yet.
        self._unsent = b""
        #: The idle connections to one origin; the one used last is last.
        self.idle = idle
        self._everyone = everyone
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: HttpAnswer | None = None
        self._status = 0
        self._until_eof = True
        #: Bytes since the last byte of a body. The parser keeps a header until it is whole.
        self._num_head_bytes = 0
        self._learned = _LearnedAnswer()
        self._paused = False
        #: Bytes of all requests, and of all before the last one.
        self._num_sent_bytes = self._num_earlier_bytes = 0
        #: The pieces of the body in the data under way.
        self._parts: list[bytes] = []
        #: Whether a chunk has ended and none has begun since; and whether the next byte is the first one of a chunk.
        self._is_between = self._is_at_chunk = False
        self.idle_since_s = 0.0

    def as_protocol(self) -> asyncio.Protocol:
        """Itself, which has the methods of a protocol."""
        return cast("asyncio.Protocol", self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        set_tcp_options(transport.get_extra_info("socket"), _TCP_OPTIONS)
        self._everyone.add(self)

    def send(self, head: bytes, body: Pieces = (), body_bytes: int = 0) -> HttpAnswer:
        """Send a whole request, whose body has ``body_bytes``. On a closed connection the answer fails."""
        answer = self._answer = HttpAnswer(self)
        self._until_eof = True
        self._num_head_bytes = 0
        self._num_earlier_bytes = self._num_sent_bytes
        self._num_sent_bytes += len(head) + body_bytes
        transport = self._transport
        if transport is None or transport.is_closing():
            answer.fail(ConnectionLost("the connection is closed"))
        elif body_bytes < _JOINED_BYTES:
            self._unsent = b"".join((head, *body))
            write(self, self._late_writes)
        else:
            transport.writelines((head, *body))
        return answer

    def write_now(self) -> None:
        """Write the request, unless its caller or the connection has gone."""
        request, self._unsent = self._unsent, b""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(request)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()
            return
        if self._unsent:  # this answers something else
            self._lose(ConnectionLost("the worker answered before it was asked"))
            self.abort()
            return
        if self._is_at_chunk:
            body = whole_chunks(data)
            if body is not None:
                self._num_head_bytes = 0
                if answer.feed(body):
                    answer.wake()
                return
        if not answer.started:
            answer.started = True
            known = self._learned.head
            end = known.end_in(data)
            if end and len(data) == end + known.num_body_bytes:
                self._take_known(answer, data[end:])
                return
            self._learned.names = [] if known.is_wanted else None
        self._parse(answer, data)

    def _parse(self, answer: HttpAnswer, data: bytes) -> None:
        self._num_head_bytes += len(data)
        failure: CallError | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            refused = error.__context__
            failure = NotHttp(str(refused) if isinstance(refused, _Refused) else "the worker's answer was not HTTP")
            failure.__cause__ = error
        if self._parts:
            if answer.feed(b"".join(self._parts)) or answer.complete:
                answer.wake()
            self._parts.clear()
        else:
            answer.wake()  # a head or an end has come, or a part of one
        self._is_at_chunk = self._is_between and data[-2:] == b"\r\n"  # else a part of the next chunk's size is here
        names, self._learned.names = self._learned.names, None
        if names is not None and answer.complete and answer.status == 200:  # others may have no body, whatever they say
            self._learn(answer, data, names)
        if failure is None and self._num_head_bytes > MAX_HEAD_BYTES:
            failure = NotHttp("the head of the worker's answer was larger than allowed")
        if failure is not None:
            self._lose(failure, failure.__cause__)
            self.abort()

    def _take_known(self, answer: HttpAnswer, body: bytes) -> None:
        """Take a whole answer whose head is known."""
        answer.content_type, answer.retry_after, answer.metadata = self._learned.kept
        answer.status = 200
        self._finish(goes_on=True)
        if body:
            answer.feed(body)
        answer.wake()

    def _learn(self, answer: HttpAnswer, data: bytes, names: list[bytes]) -> None:
        """``data``: all of it, or less. What may come before an answer, such as 100 Continue, has a head of its own."""
        known = self._learned.head
        end = known.learn(data, names) if data.startswith(_OK) else 0
        if end and end + known.num_body_bytes == len(data):
            self._learned.kept = (answer.content_type, answer.retry_after, answer.metadata)
        else:
            known.forget()

    def eof_received(self) -> None:
        if self._answer is not None and self._answer.status and self._until_eof:
            answer, self._answer = self._answer, None
            answer.finish(framed=False)
            answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        lost = ConnectionLost("the worker closed the connection")
        if self._answer is not None:
            lost.was_taken = self._may_be_taken()
        self._transport = None
        self._everyone.discard(self)
        if self in self.idle:
            self.idle.remove(self)
        self._lose(lost, exc)

    def _may_be_taken(self) -> bool:
        """Whether the worker's system may have acknowledged some of the last request. Only Linux says so, and what was
        encrypted has another number of bytes.
        """
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return True
        num_bytes = num_acknowledged(transport.get_extra_info("socket"))
        return num_bytes is None or num_bytes > self._num_earlier_bytes + 1

    def pause_writing(self) -> None:
        """The buffer for writing is full, which changes nothing: a request is written in one piece."""

    def resume_writing(self) -> None:
        """The buffer for writing has room again."""

    def _lose(self, error: CallError, cause: BaseException | None = None) -> None:
        answer, self._answer = self._answer, None
        error.__cause__ = cause
        if answer is not None:
            answer.fail(error)

    def abort(self) -> None:
        """Close now. An answer that is due does not fail, because the caller that aborts does not wait for it."""
        self._answer = None
        self._everyone.discard(self)  # uvloop never calls connection_lost of what is cancelled just after it opened
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Pause reading until ``resume``."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading. Does nothing unless reading is paused."""
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        """Whether the next request can be sent on this connection."""
        return self._transport is not None and not self._transport.is_closing()

    def on_message_begin(self) -> None:
        if self._answer is None:
            raise _Refused("the worker answered what it was not asked")  # comes out of feed_data as an HttpParserError

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self._learned.names is not None:
            self._learned.names.append(name)
        kept = _KEPT.get(name)
        if kept is None or self._answer is None:
            return
        if name.endswith(b"-encoding") and value.strip().lower() not in _PLAIN:
            raise _Refused("the worker's answer is compressed, which nobody asked for")
        if kept is _FRAME:
            self._until_eof = False
        elif kept is not _LOOKED_AT:
            setattr(self._answer, kept, value)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._answer is not None and self._status >= 200:
            self._answer.status = self._status

    def on_body(self, body: bytes) -> None:
        if self._status < 200:  # it would be taken for the beginning of the answer's
            raise _Refused("the worker's answer has a body before its status")
        self._num_head_bytes = 0
        self._parts.append(body)

    def on_chunk_header(self) -> None:
        self._is_between = False

    def on_chunk_complete(self) -> None:
        self._is_between = True

    def on_message_complete(self) -> None:
        self._is_between = False
        if self._status < 200:  # 100 Continue and the like come before the answer, which has headers of its own
            self._until_eof = True
            if self._answer is not None:
                self._answer.retry_after = self._answer.content_type = self._answer.metadata = b""
            return
        self._finish(goes_on=self._parser.should_keep_alive())

    def _finish(self, *, goes_on: bool) -> None:
        """The answer is whole. ``goes_on``: another request may follow."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.finish()
        if self._paused:
            self.resume()
        if goes_on and self.usable:
            self.idle_since_s = self.loop.time()
            self.idle.append(self)
        else:
            self.abort()

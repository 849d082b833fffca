"""One connection of a port: its requests one after another, with bounds on what a client can make it keep.

- The parser joins the pieces of a header again and again, so the bytes of a head are counted before they reach it.
- A request that is answered before all of it has come is the last one of its connection. What the client still sends is
  read and thrown away, up to a bound and for a short time, because it may read the answer only after that.
- Clients cannot make the log grow: ``Notices`` counts refusals instead of logging each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, unquote_to_bytes

import httptools

from baton_serve.core.net.answers import STATUS_LINES
from baton_serve.core.net.known_head import KnownHead
from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.asgi import AsgiCycle
from baton_serve.core.net.served.call import Calls, HttpCall, OldCall
from baton_serve.core.net.served.connections import Connections
from baton_serve.core.net.served.flow import Flow
from baton_serve.core.net.served.head import Head, not_http, unknown_method
from baton_serve.core.net.served.notices import BAD_REQUEST, LARGE_HEAD
from baton_serve.core.net.sockets import num_acknowledged
from baton_serve.core.protocol.errors import ApiError, BadRequestError, BodyTimeoutError, HeadTooLargeError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: The key of ``scope["state"]`` with the function that closes the request's connection at once.
DROP: Final = "drop"
#: Requests that a client may send before the one before them is answered.
MAX_PIPELINED: Final = 16
#: Bytes of an answered request that are read and thrown away; then the connection is closed.
LINGER_BYTES: Final = 4 << 20
_LINE_END: Final = b"\r\n"


class Served:
    """What answers the requests of a port, the same for all of its connections."""

    __slots__ = ("app", "calls", "connections", "late_writes", "tasks")

    def __init__(self, app: ASGIApp, calls: Calls | None = None, late_writes: LateWrites | None = None) -> None:
        """``app`` answers what ``calls`` does not."""
        self.app = app
        self.calls = calls
        #: The open connections, and the tasks that answer requests.
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.late_writes = late_writes


class LearnedCall:
    """The head of a call, and what the parser said of it. A call with that head does not go to the parser, and neither
    does its body.
    """

    __slots__ = ("head", "headers", "left", "path", "unlearned")

    def __init__(self) -> None:
        self.head = KnownHead()
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        #: Bytes of the body that are still to come.
        self.left = 0
        #: The data that begins with the head that the parser reads, if that is to be learned.
        self.unlearned = b""


class _Patient(asyncio.Transport):
    """The transport of an answer whose request is still coming. Closing it lets the connection linger."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.leave()


class Connection:
    """Answers what it refuses with OpenAI's error object, and closes. The parser calls the ``on_`` methods.

    Loops are given ``as_protocol``: mypyc makes no native class of a subclass of ``asyncio.Protocol``.
    """

    #: A dictionary of so many attributes would take another kilobyte.
    __slots__ = (
        "_behind",
        "_goes_on",
        "_head",
        "_ignores",
        "_is_full",
        "_learned",
        "_newest",
        "_num_ignored",
        "_owes",
        "_parser",
        "_patient",
        "_port",
        "_served",
        "_under_way",
        "flow",
        "has_deadline",
        "head_bytes",
        "transport",
    )

    #: Set when the connection is made.
    transport: asyncio.Transport
    flow: Flow

    def __init__(self, port: Connections, served: Served) -> None:
        self._port = port
        self._served = served
        self._head = Head(port.config.head.max_bytes, port.config.head.max_lines)
        self._learned = LearnedCall()
        #: ``HttpRequestParser``; None once the connection is lost, as it refers to this.
        self._parser: Any = _new_parser(self)
        #: The last request whose head is complete. None before the first one.
        self._newest: HttpCall | AsgiCycle | None = None
        #: Requests behind the one that is answered, oldest first.
        self._behind: list[HttpCall | AsgiCycle] = []
        #: Whether ``Connections`` runs the timeout of a head. Kept here because asking ``Connections`` at each request
        #: costs more.
        self._owes = False
        #: Bytes of the head that ``Connections`` has counted.
        self.head_bytes = 0
        #: Whether the connection stays open after the request under way.
        self._goes_on = True
        #: Whether parsing has ended; ``_num_ignored`` bytes were thrown away since.
        self._ignores = False
        self._num_ignored = 0
        #: Whether the client does not read an answer that is complete. Until it does, nothing is read from it, and
        #: nothing begins: each further answer would take memory.
        self._is_full = False
        #: As in ``connections.Client``.
        self.has_deadline = False
        #: The request that has begun and is not answered. ``_newest`` may be one behind it.
        self._under_way: HttpCall | AsgiCycle | None = None

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """See ``Connected``."""
        return self._served.tasks

    @property
    def late_writes(self) -> LateWrites | None:
        """See ``Connected``."""
        return self._served.late_writes

    @property
    def on_url(self) -> Callable[[bytes], None]:
        """For the parser, which looks it up once."""
        return self._head.on_url

    @property
    def on_header(self) -> Callable[[bytes, bytes], None]:
        """For the parser, which looks it up once."""
        return self._head.on_header

    def as_protocol(self) -> asyncio.Protocol:
        """Itself, which has the methods of a protocol."""
        return cast("asyncio.Protocol", self)

    # --- what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request head."""
        self._served.connections.add(self)
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self.flow = Flow(self.transport)
        self._patient: _Patient | None = _Patient(self)
        self._owes = True
        self._port.owe(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts, and tell the application that works on the request."""
        self._port.forget(self)
        self._served.connections.discard(self)
        self._tell_gone()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._port.left.set()
        self._patient = self._parser = self._newest = None  # they refer to this
        self._behind.clear()

    def eof_received(self) -> None:
        """The client sends no more: the transport closes."""
        self._write_unsent()

    def pause_writing(self) -> None:
        """The write buffer is full: start the timeout for unread answers."""
        self.flow.pause_writing()
        self._port.block(self)

    def resume_writing(self) -> None:
        """The write buffer has room again: stop that timeout."""
        self.flow.resume_writing()
        self._port.unblock(self)
        if self._is_full:
            self._is_full = False
            if not self.transport.is_closing():
                self._go_on()

    def data_received(self, data: bytes) -> None:
        """Feed the parser no more of a head than a head may have."""
        if self._ignores:
            self._ignore(len(data))
            return
        if self._learned.left:
            self._take_left(data)
            return
        self._head.piece_bytes = len(data)
        if not self._head.is_awaited:
            self._take_body(data)
            self._wait()
            return
        if not self._head.num_bytes:
            if self._head.has_begun and not data.strip(_LINE_END):
                return  # some clients send a blank line behind a body (RFC 9112, 2.2)
            self._port.wake(self)
            known = self._learned.head
            end = known.end_in(data)
            if end and len(data) <= end + known.num_body_bytes and self._takes(end):
                self._take_known(data, end)
                return
            if known.is_wanted:
                self._learned.unlearned = data
        self._head.num_bytes += len(data)
        if self._head.num_bytes > self._head.max_bytes:
            self._take_long(data)
        else:
            self._feed(data)
        self._learned.unlearned = b""
        self._wait()

    def _takes(self, end: int) -> bool:
        """Whether the parser, and what it calls, would take a known head of ``end`` bytes."""
        return self._goes_on and end <= self._head.max_bytes and len(self._behind) < MAX_PIPELINED

    def _take_known(self, data: bytes, end: int) -> None:
        """Take a call whose head is known and has ``end`` bytes. The rest of ``data`` is the beginning of its body."""
        learned, calls = self._learned, self._served.calls
        assert calls is not None, "the head is that of a call"
        num_bytes = learned.head.num_body_bytes
        headers = {**learned.headers, b"content-length": learned.head.digits}
        self._arrive(HttpCall(self, calls, learned.path, headers, keep_alive=True, waits_for_100=False))
        learned.left = num_bytes
        if end < len(data):
            self._take_left(data[end:])
        elif num_bytes:
            self._wait_for_body()
        else:
            self.on_message_complete()

    def _take_left(self, data: bytes) -> None:
        """Take more of the body of a call whose head was known, and what follows it."""
        num_bytes = min(self._learned.left, len(data))
        self._learned.left -= num_bytes
        self.on_body(data if num_bytes == len(data) else data[:num_bytes])
        if self._learned.left:
            self._wait_for_body()
            return
        self.on_message_complete()
        if num_bytes < len(data) and not self.transport.is_closing():
            self.data_received(data[num_bytes:])

    def _take_long(self, data: bytes) -> None:
        """Parse data of which only the first part may belong to this head."""
        end = len(data) + self._head.max_bytes - self._head.num_bytes
        self._feed(data[:end])
        if self._ignores:
            return
        if not self._head.is_awaited:
            self._take_body(memoryview(data)[end:])  # a view: to copy a long prompt would cost
        elif self._head.num_bytes > self._head.max_bytes:  # still the same head: for a later one the count began at 0
            self._refuse(self._head.too_large())
        else:
            self._feed(data[end:])

    def _take_body(self, data: bytes | memoryview) -> None:
        self._head.quiet_bytes += len(data)
        self._feed(data)
        if self._head.quiet_bytes > self._head.max_bytes and not self._head.is_awaited and not self._ignores:
            self._refuse(BadRequestError("A chunk of the body has no end to its size.", code="invalid_http"))

    def _feed(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            end: int = offer.args[0]
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error, data)
            return
        else:
            return
        self._feed_without_offers(data, end)

    def _feed_without_offers(self, data: bytes | memoryview, end: int) -> None:
        """Go on after the ``end`` of a head that offers another protocol, as if it had not: no protocol is changed here
        (RFC 9110, 7.8).

        The parser has skipped the body of that request, so a new parser is given the head again, without the offer. It
        must not be fed while an exception is handled: that would take the place of the cause of its own.
        """
        rest = memoryview(data)
        while True:
            rest = rest[end:]
            parser = self._parser
            head = self._head.without_upgrade(parser.get_method(), parser.get_http_version())
            parser = self._parser = _new_parser(self)
            try:
                parser.feed_data(head)
                parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                end = offer.args[0]
            except httptools.HttpParserError as error:
                self._refuse_unparsed(error, b"")
                return
            else:
                return

    def _refuse_unparsed(self, error: httptools.HttpParserError, data: bytes | memoryview) -> None:
        """Refuse what the parser, or a method that it called, did not take. ``data``: what it was fed."""
        if isinstance(error, httptools.HttpParserCallbackError):
            cause = error.__context__
            if not isinstance(cause, ApiError | httptools.HttpParserError | UnicodeDecodeError):
                raise error
            self._refuse(cause if isinstance(cause, ApiError) else not_http())
        elif isinstance(error, httptools.HttpParserInvalidMethodError) and self._head.num_bytes == len(data):
            self._refuse(unknown_method(bytes(data)) or not_http())
        else:
            self._refuse(not_http())

    def _wait(self) -> None:
        """Start the timeout of what has not come together with the first bytes of a request."""
        if not self._head.is_awaited:
            self._wait_for_body()
        elif self._head.num_bytes and not self._ignores:
            self._wait_for_head()

    def _wait_for_body(self) -> None:
        if not self._head.is_awaited and not self._ignores and self._newest is not None:
            self._newest.wait()

    def _wait_for_head(self) -> None:
        if self._newest is None or self._newest.response_complete:
            self._owes = True
            self._port.owe(self, self._head.num_bytes)

    # --- what the parser says

    def on_message_begin(self) -> None:
        """A request begins. Only its head tells whether it needs a scope."""
        self._head.begin()
        if not self._head.num_bytes:  # it begins in the piece in which the last one ended
            self._head.num_bytes = 1
            self._port.wake(self)

    def on_headers_complete(self) -> None:
        """The head is complete. An answer that begins before the body is complete is the last one of the connection."""
        if self._parser.should_upgrade():  # it is served without its offer, by ``_feed_without_offers``
            if self._parser.get_method() == b"CONNECT":
                raise BadRequestError("This server is no proxy, so there is no CONNECT.", code="invalid_http")
            return
        version = self._parser.get_http_version()
        self._head.check(version)
        if len(self._behind) >= MAX_PIPELINED:
            raise BadRequestError("Too many requests without waiting for an answer.", code="invalid_http")
        path = self._path_of_call()
        self._arrive(self._new_cycle(version) if path is None else self._new_call(path, is_old=version == "1.0"))

    def _arrive(self, newest: HttpCall | AsgiCycle) -> None:
        """The head of ``newest`` is complete."""
        if self._owes:
            self._owes = False
            self._port.settle(self)
        self._newest = newest
        self._head.end()
        goes_on = self._goes_on
        self._goes_on = goes_on and newest.keep_alive
        newest.keep_alive = False
        assert self._patient is not None, "the connection is open"
        newest.transport = self._patient
        if not goes_on:  # the answer to the one before it ends the connection, though the parser may not know it
            self._ignores = True
            return
        if self._under_way is None and not self._is_full:
            self._begin(newest)
            return
        self._behind.append(newest)
        if not isinstance(newest, HttpCall) and not isinstance(self._under_way, HttpCall):  # a call's client may leave
            self.flow.pause_reading()

    def _path_of_call(self) -> str | None:
        """The path of a request that is answered without ASGI; None for any other."""
        calls = self._served.calls
        if calls is None or self._parser.get_method() != b"POST":
            return None
        url = self._head.url
        if url not in calls.urls:
            parts: Any = httptools.parse_url(url)  # Any: its path may be None, which mypyc would not take for bytes
            url = unquote_to_bytes(parts.path or b"/")
            if url not in calls.urls:
                return None
        return url.decode("ascii")

    def _new_call(self, path: str, *, is_old: bool) -> HttpCall:
        calls, waits_for_100 = self._served.calls, self._head.expects_100
        assert calls is not None, "it has the path of a call"
        headers = dict(self._head.headers)
        if is_old:
            return OldCall(self, calls, path, headers, keep_alive=False, waits_for_100=waits_for_100)
        goes_on = bool(self._parser.should_keep_alive())
        learned = self._learned
        is_wanted = learned.unlearned and not waits_for_100
        if is_wanted and learned.head.learn(learned.unlearned, [name for name, _ in self._head.headers]):
            learned.path, learned.headers = path, headers.copy()
        return HttpCall(self, calls, path, headers, keep_alive=goes_on, waits_for_100=waits_for_100)

    def _new_cycle(self, version: str) -> AsgiCycle:
        """What ASGI needs, the addresses among it, for which no call has to ask the system. Raises
        httptools.HttpParserInvalidURLError, and UnicodeDecodeError for a path that is not ASCII.
        """
        transport, parser = self.transport, self._parser
        parts: Any = httptools.parse_url(self._head.url)
        target = parts.path or b"/"  # ``http://host`` has none
        path = target.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
            "path": unquote(path) if "%" in path else path,
            "raw_path": target,
            "query_string": parts.query or b"",
            "root_path": "",
            "headers": self._head.headers,
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "state": {DROP: transport.abort},
        }
        return AsgiCycle(
            self._served.app,
            self.tasks,
            scope,
            transport,
            self.flow,
            self.on_response_complete,
            keep_alive=version != "1.0" and bool(parser.should_keep_alive()),
            waits_for_100=self._head.expects_100,
        )

    def _begin(self, request: HttpCall | AsgiCycle) -> None:
        self._under_way = request
        request.begin()

    def on_body(self, body: bytes) -> None:
        """A piece of the body, which is thrown away once the answer has begun."""
        self._head.quiet_bytes = 0
        newest = self._newest
        assert newest is not None, "a head comes first"
        if newest.response_started:
            self._ignore(len(body))
        else:
            newest.feed(body)

    def on_message_complete(self) -> None:
        """The request is complete; the next head may begin."""
        if self._head.is_awaited:  # the head offers an upgrade, and is to be parsed again
            return
        self._head.is_awaited = True
        self._head.num_bytes = 0
        self._learned.unlearned = b""
        newest = self._newest
        assert newest is not None, "a head comes first"
        if not newest.response_started:
            newest.keep_alive = self._goes_on
        newest.transport = self.transport
        newest.complete()

    # --- how it ends

    def on_response_complete(self) -> None:
        """The answer is complete: go on to the next request."""
        self.has_deadline = False
        self._under_way = None
        if self.transport.is_closing():
            self._flush()
        elif self.flow.write_paused and not self._ignores:
            self._is_full = True
            self.flow.pause_reading()
            if not self._behind:
                self._port.rest(self)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self.flow.resume_reading()
        if self._behind:
            self._begin(self._behind.pop(0))
        elif self._ignores:
            self.leave()
        elif self._head.is_awaited and self._head.num_bytes:
            self._wait_for_head()
        else:
            self._port.rest(self)

    def leave(self) -> None:
        """Close after the client had time to read the answer: it may read only after it has sent everything."""
        if self.transport.is_closing():
            return
        self._ignores = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone, which the loop has not seen yet
                self.transport.write_eof()
        self._port.leave(self)

    def close(self) -> None:
        """Close when everything was sent."""
        self.transport.close()
        self._flush()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def ignore(self) -> None:
        """Throw away all further data."""
        self._ignores = True

    def shutdown(self) -> None:
        """The port closes: end after the request under way."""
        self._goes_on = False
        self._write_unsent()
        if self._newest is None or self._newest.response_complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    def unsent_bytes(self) -> int:
        """The number of bytes that were written and that the client's system has not taken."""
        return self.transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """The number of bytes that the client's system has acknowledged. Only Linux reports them; elsewhere returns
        minus ``unsent_bytes``, which is no good measure: TLS has a buffer of its own, and the system's takes more only
        when a third of it is free.
        """
        num_bytes = num_acknowledged(self.transport.get_extra_info("socket"))
        return -self.unsent_bytes() if num_bytes is None else num_bytes

    def refuse_late_head(self) -> None:
        """Answer 408 if a part of a head has come, and close."""
        if not self._head.has_begun or not self._head.num_bytes:
            self.close()
        else:
            self._answer(BodyTimeoutError("The request's head did not come in time.", code="request_head_timeout"))

    def _tell_gone(self) -> None:
        """Tell the application about the request under way. The application does not know of requests behind it."""
        request, self._under_way = self._under_way, None
        if request is not None:
            request.gone()

    def _write_unsent(self) -> None:
        """Write what is put off, and the answers that it leads to: what comes now may close the connection."""
        request = self._under_way
        while isinstance(request, HttpCall) and request.has_unsent:
            request.write_now()
            request = self._under_way

    def _flush(self) -> None:
        if self.unsent_bytes():
            self._port.leave(self)

    def _ignore(self, num_bytes: int) -> None:
        self._num_ignored += num_bytes
        if self._num_ignored > LINGER_BYTES:
            self.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer with the error and close; if another answer is under way, close after that one."""
        if self._ignores:  # the request came behind the last one of the connection
            return
        self._port.notices.note(LARGE_HEAD if isinstance(error, HeadTooLargeError) else BAD_REQUEST)
        self._write_unsent()
        newest = self._newest
        if newest is None or newest.response_complete:
            self._answer(error)
        elif self._head.is_awaited:
            self._end_after(newest)
        elif self._behind:  # the error is in the body of the last one
            self._behind.pop()
            self._newest = self._behind[-1] if self._behind else self._under_way
            self._end_after(self._newest)
        elif newest.response_started:
            self.close()
        else:
            self._refuse_body(newest, error)

    def _refuse_body(self, newest: HttpCall | AsgiCycle, error: ApiError) -> None:
        """Refuse a body, but not before its head has been looked at, as where the two come in two pieces."""
        self._ignores = True
        if isinstance(newest, HttpCall):
            newest.wait()
            self._refuse_unanswered(newest, error)
        else:  # its task has not begun
            asyncio.get_running_loop().call_soon(self._refuse_unanswered, newest, error)

    def _refuse_unanswered(self, newest: HttpCall | AsgiCycle, error: ApiError) -> None:
        if self.transport.is_closing() or newest.response_complete:
            return
        if newest.response_started:
            self.close()
        else:
            self._tell_gone()
            self._answer(error)

    def _end_after(self, last: HttpCall | AsgiCycle | None) -> None:
        """Ignore what comes, and close after the answer to ``last``; None: when the client has read the last one."""
        self._ignores = True
        self._port.settle(self)
        self._goes_on = False
        if last is not None:
            assert self._patient is not None, "the connection is open"
            last.keep_alive = False
            last.transport = self._patient

    def _answer(self, error: ApiError) -> None:
        body = error.to_json()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINES[error.status] + head + body)
        self.leave()


def _address(transport: asyncio.Transport, which: str) -> tuple[str, int] | None:
    """Host and port; None where there are none, as for a socket that is a file."""
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


def _new_parser(connection: Connection) -> httptools.HttpRequestParser:
    """A parser that ignores what follows on a connection that is to be closed."""
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser

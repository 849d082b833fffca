"""The HTTP client to workers, against servers that are scripted byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from baton_serve.core.net.client import http_client
from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.errors import AnswerTooLarge, CallTimeout, ConnectError, ConnectionLost
from baton_serve.core.net.client.http_client import MAX_IDLE_S, HttpClient
from baton_serve.core.net.deadlines import Timeout
from tests.kits.patience import PATIENCE_S, eventually

OK = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """Answers the n-th request with the n-th list of pieces; None closes the connection there."""

    def __init__(self) -> None:
        self.answers: list[list[bytes | None]] = []
        self.requests: list[bytes] = []
        self.num_connections = 0
        self.num_lost = 0
        self.lost = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.url = ""
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._connections.add(asyncio.create_task(self.serve(reader, writer)))

    async def close(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await self.go.wait()
        self.num_lost += 1
        self.lost.set()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/base"
    yield made
    listening.close()
    await made.close()


@pytest.fixture
async def upstream() -> AsyncIterator[HttpClient]:
    made = HttpClient(connect_timeout_s=5)
    yield made
    await made.close()


async def ask(upstream: HttpClient, server: Server, timeout_s: float = 10) -> bytes:
    answer = await upstream.request("POST", server.url, "/v1/x", (("x-a", "b"),), b"body", timeout_s)
    return await answer.read(1000, timeout_s)


async def test_a_connection_is_kept_and_used_again(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK], [OK]]
    for _ in range(2):
        answer = await upstream.request("POST", server.url, "/v1/x", (("x-a", "b"),), b"body", 10)
        assert answer.status == 200
        assert await answer.read(1000, 10) == b"hi"
    assert server.num_connections == 1
    assert server.requests[0].startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-a: b\r\n" in server.requests[0]
    assert server.requests[0].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nh\r\n", b"1\r\ni\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n", b"h", b"i", None],
        [b"HTTP/1.1 100 Continue\r\n\r\n", OK],
        [OK[:10], OK[10:30], OK[30:]],
    ],
    ids=["chunked", "closed after", "continue", "in pieces"],
)
async def test_a_body_may_end_in_each_of_the_ways_of_http(
    server: Server, upstream: HttpClient, pieces: list[bytes | None]
) -> None:
    server.answers = [pieces, [OK]]
    assert await ask(upstream, server) == b"hi"
    assert await ask(upstream, server) == b"hi"


async def test_headers_of_an_interim_answer_do_not_stay_in_the_final_one(server: Server, upstream: HttpClient) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nretry-after: 5\r\ncontent-type: text/html\r\nmetadata: x\r\n"
    server.answers = [[early + b"content-length: 0\r\n\r\nHTTP/1.1 400 No\r\n\r\nhi", None]]
    answer = await upstream.request("POST", server.url, "/v1/x", (), b"body", 10)
    assert (answer.retry_after, answer.content_type, answer.metadata) == (b"", b"", b"")
    assert await answer.read(1000, 10) == b"hi"


async def test_answers_are_asked_for_without_compression(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK]]
    await ask(upstream, server)
    assert b"\r\naccept-encoding: identity\r\n" in server.requests[0]


@pytest.mark.parametrize(
    "pieces",
    [
        [None],
        [b"HTTP/1.1 200 O", None],
        [OK[:-1], None],
        [b"SSH-2.0\r\n\r\n"],
        [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhi"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", None],
        [b"HTTP/1.1 200 OK\r\n\r\nhi", None],
        [b"HTTP/1.1 199 Odd\r\ncontent-length: 5\r\n\r\nfalse", OK],
        [b"HTTP/1.1 199 Odd\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfalse\r\n0\r\n\r\n", OK],
        [OK.replace(b"\r\n", b"\r\ncontent-encoding: gzip\r\n", 1)],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"],
    ],
    ids=[
        *("nothing", "half a head", "half a body", "not HTTP", "upgrade", "nothing final", "may be cut"),
        *("a body before the status", "chunks before the status", "compressed", "compressed on its way"),
    ],
)
async def test_a_broken_answer_is_a_lost_connection(
    server: Server, upstream: HttpClient, pieces: list[bytes | None]
) -> None:
    server.answers = [pieces, [OK]]
    with pytest.raises(ConnectionLost):
        await ask(upstream, server)
    assert await ask(upstream, server) == b"hi"


async def test_a_kept_connection_that_the_worker_dropped_is_replaced(
    server: Server, upstream: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "STALE_S", 60.0)  # however slow this machine is
    server.answers = [[OK], [None], [OK]]
    await ask(upstream, server)
    assert await ask(upstream, server) == b"hi"
    assert (server.num_connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_connect_error_says_whether_the_worker_had_the_request(upstream: HttpClient, taken: bool) -> None:
    """It closes a kept connection and its port: before the request came, or when its system had taken some of it."""
    loop = asyncio.get_running_loop()
    port = socket.create_server(("127.0.0.1", 0))
    port.setblocking(False)
    url = f"http://127.0.0.1:{port.getsockname()[1]}"
    first = asyncio.create_task(upstream.request("POST", url, "/v1/x", (), b"body", 10))
    there, _ = await loop.sock_accept(port)
    await loop.sock_recv(there, 10_000)
    await loop.sock_sendall(there, OK)
    (await first).close()

    async def read_and_leave() -> None:
        await loop.sock_recv(there, 10_000)
        there.close()

    port.close()
    if taken:
        reading = asyncio.create_task(read_and_leave())
    else:
        there.close()  # of which the client has not heard yet
    with pytest.raises(ConnectError) as refused:
        await upstream.request("POST", url, "/v1/x", (), b"body", 10)
    assert refused.value.was_sent is taken
    if taken:
        await reading


async def test_a_request_that_must_be_sent_once_is_not_sent_again(
    server: Server, upstream: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "STALE_S", 60.0)
    server.answers = [[OK], [None], [OK]]
    await ask(upstream, server)
    with pytest.raises(ConnectionLost):
        await upstream.request("POST", server.url, "/v1/x", (), b"body", 10, once=True)
    assert (server.num_connections, len(server.requests)) == (1, 2)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_caller_that_changes_its_mind_when_connected_sends_nothing(
    server: Server, upstream: HttpClient, kept: bool
) -> None:
    server.answers = [[OK], [OK]]
    if kept:
        await ask(upstream, server)

    def sending() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await upstream.request("POST", server.url, "/v1/x", (), b"body", 10, sending=sending)
    await server.lost.wait()  # the connection is not kept, since nobody would know what was sent on it
    assert await ask(upstream, server) == b"hi"
    assert (len(server.requests), server.num_connections) == (1 + kept, 2)


async def test_a_connection_that_breaks_while_the_worker_may_be_at_work_is_not_replaced(
    server: Server, upstream: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "STALE_S", 0.01)
    server.answers = [[OK], [b"", None], [OK]]
    await ask(upstream, server)
    server.go.clear()
    lost = asyncio.create_task(ask(upstream, server))
    await eventually(lambda: len(server.requests) == 2)
    await asyncio.sleep(0.02)  # longer than a stale one lasts
    server.go.set()
    with pytest.raises(ConnectionLost):
        await lost
    assert len(server.requests) == 2


async def test_a_failure_after_the_answer_began_is_not_repeated(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK], [b"HTTP/1.1 200 OK\r\n", None], [OK]]
    await ask(upstream, server)
    with pytest.raises(ConnectionLost):
        await ask(upstream, server)
    assert len(server.requests) == 2


async def test_an_answer_that_ends_with_its_connection_will_do_for_a_stream_or_an_error(
    server: Server, upstream: HttpClient
) -> None:
    server.answers = [[b"HTTP/1.1 200 OK\r\n\r\nhi", None], [b"HTTP/1.1 500 No\r\n\r\nhi", None]]
    stream = await upstream.request("POST", server.url, "/", (), b"", 10)
    assert [await stream.chunk(), await stream.chunk()] == [b"hi", b""], "a stream has an end of its own"
    assert await ask(upstream, server) == b"hi"


EXTRA = OK.replace(b"hi", b"no")


@pytest.mark.parametrize("extra", [EXTRA, EXTRA[:20], EXTRA + EXTRA, b"garbage"], ids=["one", "half", "two", "garbage"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_answer_that_nobody_asked_for_is_given_to_no_request(
    server: Server, upstream: HttpClient, extra: bytes, at_once: bool
) -> None:
    if at_once:
        server.answers = [[OK + extra], [OK], [OK]]
    else:
        server.answers = [[OK, extra], [OK], [OK]]
        server.go.clear()
    assert await ask(upstream, server) == b"hi"
    server.go.set()
    await asyncio.wait_for(server.lost.wait(), PATIENCE_S)
    for _ in range(2):
        assert await ask(upstream, server) == b"hi"
    assert (server.num_connections, len(server.requests)) == (2, 3)


async def test_an_answer_that_ends_without_a_status_is_lost() -> None:
    class Nothing:
        loop = asyncio.get_running_loop()

        def abort(self) -> None: ...
        def pause(self) -> None: ...
        def resume(self) -> None: ...
        def call_later(self, delay_s: float, call: Callable[[], object]) -> Timeout: ...

    answer = HttpAnswer(Nothing())
    waiting = asyncio.create_task(answer.headers())
    await asyncio.sleep(0)
    answer.finish()
    answer.wake()
    with pytest.raises(ConnectionLost):
        await waiting


async def test_data_that_came_before_a_loss_is_delivered(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK[:-1], None]]
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    await eventually(lambda: answer._error)
    assert await answer.chunk() == b"h"
    with pytest.raises(ConnectionLost):
        await answer.chunk()


async def test_a_connection_is_used_again_after_the_key_has_changed(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK] for _ in range(4)]
    for key in ("", "one", "two", ""):
        upstream.use_key(server.url, key)
        assert await ask(upstream, server) == b"hi"
    keys = [head.partition(b"authorization: ")[2].partition(b"\r\n")[0] for head in server.requests]
    assert keys == [b"", b"Bearer one", b"Bearer two", b""]
    assert server.num_connections == 1


async def test_a_connection_idle_for_too_long_is_not_used_again(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK], [OK]]
    await ask(upstream, server)
    (connection,) = upstream._connections
    connection.idle_since_s -= MAX_IDLE_S
    await ask(upstream, server)
    assert server.num_connections == 2


async def test_origins_without_connections_are_forgotten(
    server: Server, upstream: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_ORIGINS", 3)
    server.answers = [[OK], [OK]]
    await ask(upstream, server)
    for port in range(1, 9):
        with contextlib.suppress(ConnectError):
            await upstream.request("GET", f"http://127.0.0.1:{port}", "/", (), b"", 10)
        assert len(upstream._origins) <= 3
    await ask(upstream, server)
    assert server.num_connections == 1, "an origin in use is kept"


async def test_a_vanished_worker_is_noticed_by_the_kernel(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK]]
    await ask(upstream, server)
    (connection,) = upstream._connections
    assert connection._transport is not None
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_a_watched_answer_that_goes_silent_fails(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK[:-1], b""]]
    server.go.clear()
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    answer.watch(0.02)
    assert await answer.chunk() == b"h"
    with pytest.raises(CallTimeout):
        await answer.chunk()
    server.go.set()
    await asyncio.wait_for(server.lost.wait(), PATIENCE_S)


async def test_a_watched_answer_that_nobody_reads_does_not_fail(upstream: HttpClient, server: Server) -> None:
    server.answers = [[OK[:-1], b"i"]]
    server.go.clear()
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    answer.watch(0.001)
    await asyncio.sleep(0.02)  # many looks
    server.go.set()
    assert await answer.read(10, 10) == b"hi"
    assert answer._watch is None, "nothing is left to fire"


@pytest.mark.parametrize("piece", [b"", OK[:-1]], ids=["nothing", "half a body"])
async def test_no_answer_in_time_closes_the_connection(server: Server, upstream: HttpClient, piece: bytes) -> None:
    server.answers = [[piece]]
    server.go.clear()
    with pytest.raises(CallTimeout):
        await ask(upstream, server, timeout_s=0.05)
    server.go.set()
    await asyncio.wait_for(server.lost.wait(), PATIENCE_S)


async def test_cancelling_a_request_closes_its_connection(server: Server, upstream: HttpClient) -> None:
    server.answers = [[b""]]
    task = asyncio.create_task(ask(upstream, server))
    await eventually(lambda: server.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.lost.wait(), PATIENCE_S)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_connection_is_left_of_a_call_that_is_cancelled_as_it_opens(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancelled_after(num_turns: int) -> str:
        listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        client = HttpClient(connect_timeout_s=5)
        task = asyncio.create_task(client.request("POST", url, "/", (), b"", 10))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(100):  # connection_lost comes in one of the next turns
            await asyncio.sleep(0)
        left = repr(client)
        await client.close()
        listening.close()
        return left

    with asyncio.Runner(loop_factory=new_loop) as runner:
        for num_turns in range(10):
            assert "<HttpClient 0 connections" in runner.run(cancelled_after(num_turns)), num_turns


async def test_an_answer_over_the_limit_is_an_error(server: Server, upstream: HttpClient) -> None:
    server.answers = [[b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000]]
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    with pytest.raises(AnswerTooLarge):
        await answer.read(1000, 10)


async def test_a_client_that_does_not_read_stops_the_worker(server: Server, upstream: HttpClient) -> None:
    total = 8 << 20
    server.answers = [[b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total] + [b"x" * 65536] * (total // 65536)]
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    for _ in range(200):
        await asyncio.sleep(0)
    assert answer._num_bytes < 2 << 20, "paused near the high water mark"
    received = 0
    while part := await answer.chunk():
        received += len(part)
    assert received == total


async def test_a_port_on_which_nobody_listens_is_a_connect_error(free_port: int, upstream: HttpClient) -> None:
    with pytest.raises(ConnectError):
        await upstream.request("GET", f"http://127.0.0.1:{free_port}", "/", (), b"", 10)


async def test_closing_an_open_answer_is_seen_by_the_worker(server: Server, upstream: HttpClient) -> None:
    server.answers = [[OK[:-1]]]
    answer = await upstream.request("POST", server.url, "/", (), b"", 10)
    answer.close()
    answer.close()
    await asyncio.wait_for(server.lost.wait(), PATIENCE_S)


@pytest.mark.parametrize("size", [1, 20_000, 3_000_000])
async def test_a_body_in_pieces_arrives_as_one(server: Server, upstream: HttpClient, size: int) -> None:
    server.answers = [[OK], [OK]]
    text = bytes(range(256)) * (size // 256 + 1)
    pieces = (b"{", memoryview(text)[1:-1], b"}")
    for _ in range(2):  # the second one on the same connection
        answer = await upstream.request("POST", server.url, "/", (), pieces, 10)
        assert await answer.read(10, 10) == b"hi"
    whole = b"".join(pieces)
    assert [request.endswith(b"\r\n\r\n" + whole) for request in server.requests] == [True, True]
    assert b"content-length: %d\r\n" % len(whole) in server.requests[0]
    assert server.num_connections == 1

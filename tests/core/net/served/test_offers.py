"""Offers to upgrade a connection are passed over: the request is served as if it had none, with its body."""

from __future__ import annotations

import pytest

from baton_serve.core.net.served.config import HeadLimits, PortConfig
from tests.kits.port import GET, HEAD, Served, serving

OFFERS = {
    "http/2": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: upgrade\r\nsec-websocket-version: 13\r\n",
    "in two lines": b"connection: upgrade\r\nupgrade: h2c\r\nupgrade: a/1\r\n",
}
BODIES = {
    "no body": (b"\r\n", 0),
    "a length": (b"content-length: 5\r\n\r\nhello", 5),
    "chunks": (b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 5),
    "a body like a request": (b"content-length: %d\r\n\r\n%b" % (len(GET), GET), len(GET)),
}


@pytest.fixture(params=OFFERS.values(), ids=OFFERS)
def offer(request: pytest.FixtureRequest) -> bytes:
    return HEAD + bytes(request.param)


@pytest.mark.parametrize(("rest", "num_bytes"), BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("step", [1 << 20, 90, 1])
async def test_the_body_of_an_offer_is_read_and_the_connection_goes_on(
    offer: bytes, rest: bytes, num_bytes: int, step: int, served: Served
) -> None:
    sent = offer + rest
    caller = await served.connect()
    for turn in (1, 2):
        for start in range(0, len(sent), step):
            await caller.send(sent[start : start + step])
        answer = await caller.answer()
        assert (answer.status, answer.body) == (200, b"%d" % (turn * num_bytes))
        assert "connection" not in answer.headers
    assert len(served.app.scopes) == 2


async def test_a_body_in_a_later_packet_is_waited_for(offer: bytes, served: Served) -> None:
    caller = await served.send(offer + b"content-length: 5\r\n\r\n")
    await served.app.until_asked(1)
    await caller.send(b"hel")
    await caller.send(b"lo")
    assert (await caller.answer()).body == b"5"


async def test_many_offers_in_one_packet_are_answered_in_order(offer: bytes, served: Served) -> None:
    caller = await served.send((offer + b"content-length: 1\r\n\r\nx" + HEAD + b"content-length: 1\r\n\r\ny") * 8)
    assert [(await caller.answer()).body for _ in range(16)] == [b"%d" % number for number in range(1, 17)]
    assert len(served.app.scopes) == 16


async def test_the_request_is_seen_without_its_offer(offer: bytes, served: Served) -> None:
    await served.ask(offer + b"a: \xe9 b\r\ncontent-length: 1\r\n\r\nx")
    (scope,) = served.app.scopes
    headers = dict(scope["headers"])
    assert b"upgrade" not in headers
    assert (headers[b"host"], headers[b"a"], scope["path"]) == (b"x", b"\xe9 b", "/echo")


async def test_a_client_that_offers_and_wants_to_close_is_closed(served: Served) -> None:
    head = HEAD + b"connection: close, upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\n"
    caller, answer = await served.ask(head + b"x")
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"1", "close")
    await caller.closed()


async def test_an_old_client_that_offers_is_answered_once(served: Served) -> None:
    head = b"POST /echo HTTP/1.0\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\n"
    _, answer = await served.ask(head + b"x" + GET)
    assert (answer.body, answer.headers["connection"]) == (b"1", "close")


BAD = {
    "a length and chunks": b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "two lengths": b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    "two hosts": b"host: y\r\n\r\n",
    "a coding": b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no chunk": b"transfer-encoding: chunked\r\n\r\nx\r\n",
}


@pytest.mark.parametrize("rest", BAD.values(), ids=BAD)
async def test_a_request_that_is_refused_without_an_offer_is_refused_with_one(
    offer: bytes, rest: bytes, served: Served
) -> None:
    caller, answer = await served.ask(offer + rest)
    assert (answer.status, answer.headers["connection"]) == (501 if b"gzip" in rest else 400, "close")
    await caller.closed()


@pytest.mark.parametrize("step", [1 << 20, 700])
async def test_the_bounds_of_heads_hold(offer: bytes, step: int) -> None:
    async with serving(PortConfig(keep_alive_s=60, head=HeadLimits(max_bytes=4096))) as served:
        caller = await served.connect()
        sent = offer + b"a: " + b"x" * 5000 + b"\r\n\r\n"
        for start in range(0, len(sent), step):
            caller.writer.write(sent[start : start + step])
        assert (await caller.answer()).status == 431
        await caller.closed()

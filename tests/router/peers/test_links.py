"""Links between routers: internal ports in this process, the registry played by the test."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers import links
from tests.kits.router.cluster import eventually
from tests.kits.router.other_router import OTHER, TOKEN, OtherRouter, linked, state
from tests.kits.router.stranger import Stranger


def record_of(stranger: Stranger) -> RouterRecord:
    """What announces the other router there."""
    return RouterRecord(router_id=OTHER, url="http://h", internal_url=f"http://127.0.0.1:{stranger.port}")


def deaths(peers: Any) -> list[str]:
    return list(peers.dead)


async def test_other_routers_are_met_asked_and_missed() -> None:
    async with linked() as peers:
        async with OtherRouter() as other:
            peers.apply([other.record])
            assert list(peers) == [other.record]
            await eventually(lambda: state(peers) == "linked")
            (answer,) = await peers.gather("GET", "/internal/echo")
            assert (answer.router_id, answer.ok, answer.body, answer.error) == (
                OTHER,
                True,
                b'{"from":"bbbbbbbbbbbb"}',
                "",
            )
            assert await peers.ask(OTHER, "GET", "/internal/echo") == answer
            assert await peers.ask("c" * 12, "GET", "/internal/echo") is None
        await eventually(lambda: deaths(peers) == [OTHER])
        assert list(peers) == [], "although the registry has not forgotten it"
        peers.apply([other.record])
        peers.apply([])
        assert deaths(peers) == [OTHER], "once"


async def test_a_router_that_answers_is_alive_whatever_the_registry_says() -> None:
    async with linked() as peers, OtherRouter() as other:
        peers.apply([other.record])
        await eventually(lambda: state(peers) == "linked")
        (peer,) = peers.peers()
        since_s = peer.since_s
        for _ in range(3):
            peers.apply([])
        await eventually(lambda: state(peers) == "linked" and peer.since_s > since_s)
        assert list(peers) == [other.record]
        assert deaths(peers) == []


async def test_a_router_that_is_started_again_on_its_port_is_another_one(free_port: int) -> None:
    async with linked() as peers:
        async with OtherRouter(free_port) as other:
            peers.apply([other.record])
            await eventually(lambda: state(peers) == "linked")
        await eventually(lambda: deaths(peers) == [OTHER])
        async with OtherRouter(free_port) as other:
            peers.apply([])
            peers.apply([other.record])
            await eventually(lambda: state(peers) == "linked")
        await eventually(lambda: deaths(peers) == [OTHER, OTHER])


async def test_a_router_that_refused_and_answers_after_all_is_met_again(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_RETRY_S", 0.02)
    async with linked() as peers:
        async with OtherRouter(free_port) as other:
            peers.apply([other.record])
            await eventually(lambda: state(peers) == "linked")
        await eventually(lambda: deaths(peers) == [OTHER])
        async with OtherRouter(free_port):
            await eventually(lambda: state(peers) == "linked")
            assert list(peers) == [other.record]
            assert deaths(peers) == [OTHER]
        await eventually(lambda: deaths(peers) == [OTHER, OTHER])
        peers.apply([])
        async with OtherRouter(free_port):
            assert list(peers) == []


async def test_a_router_on_the_port_of_another_does_not_speak_for_it() -> None:
    async with linked() as peers, OtherRouter(router_id="c" * 12) as heir:
        gone = RouterRecord(router_id=OTHER, url="http://h", internal_url=heir.record.internal_url)
        peers.apply([gone, heir.record])
        await eventually(lambda: state(peers) == "unmet linked")
        peers.apply([heir.record])
        assert deaths(peers) == [OTHER]
        assert list(peers) == [heir.record]


async def test_a_router_that_does_not_answer_is_dead_once_its_presence_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINK_TIMEOUT_S", 0.05)
    async with linked() as peers, Stranger() as mute:
        peers.apply([record_of(mute)])
        await eventually(lambda: mute.num_connections >= 3)
        assert state(peers) == "unmet"
        peers.apply([])
        assert deaths(peers) == [OTHER]
        assert list(peers) == []


async def test_a_wrong_token_is_no_link() -> None:
    async with linked("another") as peers, OtherRouter() as other:
        peers.apply([other.record])
        await eventually(lambda: state(peers) == "unmet")
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert (answer.status, answer.error) == (0, "it did not prove that it knows the internal token")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 64\r\n\r\n" + b"0" * 64,
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n" + b"x" * 64,
        b"\r\n\r\n" + b"\xff" * 64,
    ],
)
async def test_whoever_listens_on_an_announced_port_is_not_shown_the_token(answer: bytes) -> None:
    async with linked() as peers, Stranger(answer) as listener:
        peers.apply([record_of(listener)])
        await eventually(lambda: listener.num_connections >= 2)
        (told,) = await peers.gather("POST", "/internal/abort", b"{}")
        asked = await peers.ask(OTHER, "GET", "/internal/echo")
        assert told.error == "it did not prove that it knows the internal token" and told == asked
        assert listener.heard.startswith(b"GET /internal/hello/")
        assert TOKEN.encode() not in listener.heard and b"authorization" not in listener.heard


async def test_a_proof_passed_on_from_another_router_proves_nothing() -> None:
    """Somebody who announces an address of their own lets the real router answer."""
    async with linked() as peers, OtherRouter() as other:
        relay = await asyncio.start_server(lambda r, w: _relay(other.port, r, w), "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        peers.apply([msgspec.structs.replace(other.record, internal_url=f"http://127.0.0.1:{port}")])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert answer.error == "it did not prove that it knows the internal token"
        relay.close()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    other_reader, other = await asyncio.open_connection("127.0.0.1", port)
    other.write(await reader.readuntil(b"\r\n\r\n"))
    writer.write(await other_reader.readuntil(b"\r\n\r\n") + await other_reader.readexactly(64))
    other.close()
    writer.close()


async def test_a_call_to_a_new_router_waits_for_its_proof() -> None:
    async with linked() as peers, OtherRouter() as other:
        peers.apply([other.record])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert answer.ok


async def test_a_router_that_does_not_answer_is_named() -> None:
    async with linked() as peers:
        async with OtherRouter() as other:
            pass
        peers.apply([other.record])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert (answer.router_id, answer.status, answer.error) == (OTHER, 0, "it does not accept connections")

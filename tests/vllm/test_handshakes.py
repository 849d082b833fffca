"""Handshakes with a token between vLLM servers, with the side channel closed and with a stock peer."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton_serve.baton.cluster.process import ROUTER, ProcessSpec
from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, Connector
from baton_serve.baton.processes.vllm.program import find_vllm
from baton_serve.baton.processes.vllm.server import LOOPBACK, ServerPlace
from baton_serve.core.net.vllm_handshakes import HandshakeFailedError, HandshakeReason, ask
from baton_serve.core.protocol.token_keys import vllm_handshake_key
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel import SideChannels
from bench.connector.pair import Pair, PairShape, pair, prompts
from bench.vllm.servers import READS
from tests.vllm.conftest import VARIABLE

TOKEN = "only-for-this-test"
KEY = vllm_handshake_key(TOKEN)
ENVIRON = {"BATON_INTERNAL_TOKEN": TOKEN}
CLOSED = {**ENVIRON, "BATON_SIDE_CHANNEL": "closed"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def closed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Both servers have the token, and no side channel. They announce themselves."""
    shape = PairShape(announces=True, environ=CLOSED)
    async with pair(find_vllm(os.environ[VARIABLE]), shape, tmp_path_factory.mktemp("closed")) as both:
        yield both


async def test_a_hand_off_needs_no_side_channel(closed: Pair) -> None:
    prompt = next(prompts(12))
    params = await closed.prefill(prompt)
    assert params["handshake_port"] == closed.p_place.handshake_port
    assert (await closed.ask(closed.d, prompt, params)).is_like(await closed.ask(closed.p, prompt))
    assert +(await closed.checks()) == {"kept": 1}
    for place in (closed.p_place, closed.d_place):
        with socket.socket() as asker:
            assert asker.connect_ex((LOOPBACK, place.side_channel_port)) != 0


async def test_a_stranger_is_told_nothing_and_ends_nothing(closed: Pair) -> None:
    port = closed.p_place.handshake_port
    async with httpx.AsyncClient(trust_env=False) as http:
        for headers in ({}, {"authorization": f"Bearer {TOKEN}"}, {"authorization": f"Baton {'0' * 32}.{'0' * 64}"}):
            refused = await http.get(f"http://{LOOPBACK}:{port}/kv/vllm/handshake/0/0", headers=headers)
            assert (refused.status_code, refused.content) == (401, b"")
        assert (await http.post(f"http://{LOOPBACK}:{port}/kv/vllm/handshake/0/0")).status_code == 405
    with socket.create_connection((LOOPBACK, port)) as garbage:
        garbage.sendall(b"\x00\x01 garbage\r\n\r\n")
        assert garbage.recv(100).startswith(b"HTTP/1.1 400 ")
    with pytest.raises(HandshakeFailedError) as caught:
        await ask(LOOPBACK, port, vllm_handshake_key("another"), [(0, 0)])
    assert caught.value.reason is HandshakeReason.OTHER_TOKEN
    assert (await ask(LOOPBACK, port, KEY, [(0, 0)])).payloads[0, 0]


async def test_a_router_with_the_token_learns_what_the_side_channel_would_say(closed: Pair) -> None:
    channels = SideChannels(KEY)
    of_p, of_d = [
        await channels.ask_first(LOOPBACK, place.side_channel_port, place.handshake_port)
        for place in (closed.p_place, closed.d_place)
    ]
    assert of_p.has_fence and of_d.has_fence
    assert of_p.compatibility_hash == of_d.compatibility_hash
    where = RemoteEngine(
        engine_id=of_p.engine_id,
        host=LOOPBACK,
        port=closed.p_place.side_channel_port,
        handshake_port=closed.p_place.handshake_port,
    )
    assert len(await channels.ask_all(where)) == 1


async def test_a_router_serves_in_front_of_closed_side_channels(closed: Pair) -> None:
    def address(place: ServerPlace) -> str:
        return f"{place.router_address(16)}&handshake={place.handshake_port}"

    flags = {"redis-url": "", "prefill": address(closed.p_place), "decode": address(closed.d_place)}
    async with routed(closed, flags) as url:
        await check_routed(closed, url)


async def test_a_router_finds_servers_with_closed_side_channels(closed: Pair) -> None:
    """It is given Redis and the token, and no address."""
    async with routed(closed, {}) as url:
        await check_routed(closed, url)


@asynccontextmanager
async def routed(closed: Pair, flags: dict[str, Any]) -> AsyncIterator[str]:
    """The URL of a router that has the token and knows both servers."""
    spec = ProcessSpec(ROUTER, {"port": 0, **flags}, environ=ENVIRON)
    router = await closed.cluster.add("router", spec, num_workers=2)
    try:
        yield router.url
    finally:
        closed.cluster.kill("router")
        await closed.cluster.ended("router")


async def check_routed(closed: Pair, url: str) -> None:
    """The router finds nothing wrong with the servers, and a hand-off through it is checked, and kept."""
    before = await closed.checks()
    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
        workers = (await http.get(f"{url}/admin/workers")).json()["workers"]
        assert [(worker["has_fence"], worker["problem"]) for worker in workers] == [(True, "")] * 2
        assert len({worker["compatibility_hash"] for worker in workers} - {""}) == 1
        messages = [{"role": "user", "content": f"By {url}. " + "Another prompt. " * 40}]
        body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 8}
        assert (await http.post(f"{url}/v1/chat/completions", json=body)).status_code == 200
    assert await closed.checks() - before == {"kept": 1}


@pytest.mark.parametrize(("p_tp", "d_tp"), [(2, 1), (1, 2)])
async def test_every_rank_is_asked_for_its_handshake(tmp_path: Path, p_tp: int, d_tp: int) -> None:
    prompt = next(prompts(12))
    shape = PairShape(p_tp=p_tp, d_tp=d_tp, environ=CLOSED)
    async with pair(find_vllm(os.environ[VARIABLE]), shape, tmp_path) as both:
        wanted = await both.ask(both.p, prompt)
        assert (await both.hand_off(prompt)).is_like(wanted)
        assert +(await both.checks()) == {"kept": d_tp}


@pytest.mark.parametrize(("p", "d"), [(STOCK, BATON), (BATON, STOCK)])
async def test_a_pair_with_a_stock_server_works_as_stock(tmp_path: Path, p: Connector, d: Connector) -> None:
    prompt = next(prompts(12))
    async with pair(find_vllm(os.environ[VARIABLE]), PairShape(p, d_connector=d, environ=ENVIRON), tmp_path) as both:
        wanted = await both.ask(both.p, prompt)
        assert (await both.hand_off(prompt)).is_like(wanted)
        assert await both.metric("d", READS) == 1
        assert not +(await both.checks())

"""Connections are bounded in number, and none is kept for one that never asks for anything."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from baton_serve.core.net.served.config import HeadLimits, PortConfig, internal_port, public_port
from baton_serve.core.net.served.notices import MADE_ROOM, NO_DESCRIPTORS, SLOW_HEAD, STUCK, TURNED_AWAY
from baton_serve.core.process.settings import ProcessSettings
from tests.kits.patience import PATIENCE_S, eventually
from tests.kits.port import GET, HEAD, Caller, Served, serving

HELD = b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n"
IMPATIENT = PortConfig(keep_alive_s=60, head=HeadLimits(timeout_s=0.05))
FEW = PortConfig(keep_alive_s=60, max_connections=4)


@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "a blank line"])
async def test_a_client_that_sends_no_head_is_disconnected(sent: bytes) -> None:
    async with serving(IMPATIENT) as served:
        caller = await served.send(sent)
        await caller.closed()
        assert served.port.connections.notices.counts == {SLOW_HEAD: 1}


@pytest.mark.parametrize("first", [b"", GET], ids=["at first", "later"])
async def test_a_client_that_sends_half_a_head_is_answered_with_408(first: bytes) -> None:
    async with serving(IMPATIENT) as served:
        caller = await served.connect()
        if first:
            await caller.send(first)
            assert (await caller.answer()).status == 200
        await caller.send(GET[:-2])
        answer = await caller.answer()
        assert (answer.status, answer.code, answer.headers["connection"]) == (408, "request_head_timeout", "close")
        await caller.closed()


async def test_a_client_that_rests_or_waits_for_an_answer_owes_no_head() -> None:
    async with serving(IMPATIENT) as served:
        waiting, resting = await served.connect(), await served.connect()
        await waiting.send(HELD + GET[:5])
        await served.connect()
        await resting.send(GET)
        assert (await resting.answer()).status == 200
        await asyncio.gather((await served.connect()).closed(), (await served.connect()).closed())
        await resting.send(GET)
        assert (await resting.answer()).status == 200
        served.app.go_on.set()
        assert (await waiting.answer()).status == 200
        assert (await waiting.answer()).status == 408, "its time began when it had its answer"


async def test_a_kept_connection_is_closed_when_its_time_is_over() -> None:
    async with serving(PortConfig(keep_alive_s=0.05)) as served:
        caller, answer = await served.ask(GET)
        assert (answer.status, answer.headers.get("connection")) == (200, None)
        await caller.closed()


async def test_a_client_that_takes_no_answer_is_not_waited_for() -> None:
    config = PortConfig(keep_alive_s=0.05, linger_s=0.05)
    async with serving(config) as served:
        served.app.answer = b"x" * (32 << 20)
        caller = await served.send(GET)
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: not len(served.port.connections))
        assert served.port.connections.notices.counts == {STUCK: 1}


async def test_connections_that_ask_for_nothing_make_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(FEW) as served:
        silent = [await accepted(served, number) for number in range(4)]
        for number in range(3):
            _, answer = await served.ask(GET)
            assert answer.status == 200
            await silent[number].closed()
        await served.ask(GET)
        await silent[3].closed()
        assert len(served.port.connections) <= 4
    assert [message for message in caplog.messages if MADE_ROOM in message] == [
        f"port: {MADE_ROOM}: 1",
        f"port: {MADE_ROOM}: 3",
    ], "the first at once, the others together"


async def test_clients_that_rest_make_room_after_those_that_never_asked() -> None:
    async with serving(FEW) as served:
        resting = [(await served.ask(GET))[0] for _ in range(3)]
        silent = await accepted(served, 3)
        for left in (silent, *resting):
            await served.ask(GET)
            await left.closed()


async def test_a_client_that_waits_for_an_answer_makes_room_for_nobody() -> None:
    async with serving(FEW) as served:
        busy = [await asking(served, number) for number in range(4)]
        for _ in range(2):
            late, answer = await served.ask(b"")
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            await late.closed()
        assert served.port.connections.notices.counts == {TURNED_AWAY: 2}
        served.app.go_on.set()
        for caller in busy:
            assert (await caller.answer()).status == 200
        _, answer = await served.ask(GET)
        assert answer.status == 200


async def test_unfinished_heads_are_bounded_together(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr("baton_serve.core.net.served.connections.MAX_HEADS_BYTES", 100_000)
    callers = []
    for number in range(4):
        callers.append(await accepted(served, number))
        await callers[-1].send(b"GET / HTTP/1.1\r\na: " + b"x" * 30_000)
    await callers[0].closed()
    await callers[3].send(b"\r\nhost: x\r\n\r\n")
    assert (await callers[3].answer()).status == 200
    served.app.scopes.clear()
    await callers[1].send(b"\r\nhost: x\r\n\r\n")
    assert (await callers[1].answer()).status == 200
    assert served.port.connections._heads_bytes < 31_000, "what is complete does not count"


async def test_the_request_that_is_read_may_wait_for_its_body() -> None:
    async with serving(FEW) as served:
        caller = await served.send(HEAD + b"content-length: 4\r\n\r\nab")
        await served.app.until_asked(1)
        for _ in range(5):
            await served.connect()
        await caller.send(b"cd")
        assert (await caller.answer()).body == b"4"


async def accepted(served: Served, num_before: int) -> Caller:
    """A connection that the port knows of."""
    caller = await served.connect()
    await eventually(lambda: len(served.port.connections) > num_before)
    return caller


async def asking(served: Served, num_before: int) -> Caller:
    """A connection with a request that runs."""
    caller = await served.send(HELD)
    await served.app.until_asked(num_before + 1)
    return caller


PROGRAM = """
import asyncio, logging, resource, sys
sys.path.insert(0, {tests!r})
from tests.kits.port import App
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind, port_of

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    logging.basicConfig(level="INFO")
    bound = bind("127.0.0.1", 0)
    port = HttpPort(App(), bound, PortConfig(keep_alive_s=60))
    await port.start()
    print(port_of(bound), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await port.stop(1.0)

{run}(main())
"""


@pytest.mark.parametrize("run", ["asyncio.run", "__import__('uvloop').run"], ids=["asyncio", "uvloop"])
def test_a_port_out_of_descriptors_serves_the_newest_and_says_so_in_one_line(run: str) -> None:
    program = PROGRAM.format(run=run, tests=str(__file__).rpartition("/")[0])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        number = int(child.stdout.readline())
        asyncio.run(_crowd(number))
        child.stdin.close()
        lines = [line for line in child.stderr.read().splitlines() if "baton.net" in line]
    assert len(lines) == 2, lines
    assert lines[0] == f"WARNING:baton.net:port: {NO_DESCRIPTORS}: 1"
    assert MADE_ROOM in lines[1]


async def _crowd(number: int) -> None:
    """Sixty connections that say nothing, and somebody who asks."""
    async with asyncio.timeout(PATIENCE_S):
        silent = [await asyncio.open_connection("127.0.0.1", number) for _ in range(60)]
        caller = Caller(*await asyncio.open_connection("127.0.0.1", number))
        await caller.send(GET)
        assert (await caller.answer()).status == 200
        for _, writer in (*silent, (caller.reader, caller.writer)):
            writer.close()


def test_a_process_shares_its_descriptors_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, public, internal in ((64, 16, 16), (1024, 416, 128), (65_536, 20_000, 8192)):
        monkeypatch.setattr("baton_serve.core.net.served.config.resource.getrlimit", lambda _, soft=soft: (soft, soft))
        settings = ProcessSettings()
        ports = public_port(settings, 60), internal_port(settings, 60)
        assert [port.max_connections for port in ports] == [public, internal]
    assert public_port(ProcessSettings(max_connections=77), 60).max_connections == 77

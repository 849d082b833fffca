"""How a remote engine is reached: names that hang, addresses that swallow everything, a bounded number of sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from baton_serve.core.protocol.handshake import RankMetadata
from baton_serve.workers.handshake.fetch import MAX_EXTRA_CONNECTIONS, MAX_RANKS_AT_ONCE, HandshakeFetcher
from baton_serve.workers.handshake.resolver import MAX_ADDRESSES, Lookup, Resolver, look_up
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason
from tests.kits.patience import PATIENCE_S
from tests.kits.transfer.handshake_server import HASH, Server, target

ROOT = Path(__file__).parents[3]


def fetcher(lookup: Lookup = look_up, max_lookups: int = 8, try_s: float = 0.1) -> HandshakeFetcher:
    return HandshakeFetcher(None, HASH, resolver=Resolver(lookup, max_lookups), try_s=try_s)


async def reason_of(fetching: asyncio.Task[list[RankMetadata]]) -> HandshakeReason:
    with pytest.raises(HandshakeError) as caught:
        await fetching
    return caught.value.reason


async def gone(tasks: list[asyncio.Task[list[RankMetadata]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Names:
    """A name server: ``known`` names are answered at once; others hang until ``let_go``, and do not exist then."""

    def __init__(self, **known: list[str]) -> None:
        self.known = known
        self.asked: Counter[str] = Counter()
        #: One for each question.
        self.questions = threading.Semaphore(0)
        self._go = threading.Event()

    def look_up(self, host: str) -> list[str]:
        self.asked[host] += 1
        self.questions.release()
        if host not in self.known:
            self._go.wait()
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.known[host]

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def name_server(**known: list[str]) -> Iterator[Names]:
    names = Names(**known)
    yield names
    names.let_go()


async def meet_while_names_hang(names: Names) -> None:
    """More names hang than an event loop has threads to look them up, and one hangs for eight ranks."""
    reach = fetcher(names.look_up, max_lookups=50)
    async with Server(8).served() as server:
        hung = [asyncio.create_task(reach.fetch(target(1, f"hung{i}", 8))) for i in range(40)]
        for _ in hung:
            assert await asyncio.to_thread(names.questions.acquire, timeout=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            for host in ("127.0.0.1", "localhost", "LOCALHOST", "good"):
                assert await reach.fetch(target(server.port, host, 8)) == server.ranks
        assert not any(task.done() for task in hung)
        assert set(server.hosts) == {
            f"{host}:{server.port}" for host in ("127.0.0.1", "localhost", "LOCALHOST", "good")
        }
        await gone(hung)
    assert names.asked == {**{f"hung{i}": 1 for i in range(40)}, "good": 1}


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_name_that_hangs_holds_up_nobody_else(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with name_server(good=["127.0.0.1"]) as names, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(meet_while_names_hang(names))


def test_no_exit_waits_for_a_name() -> None:
    program = """
import asyncio, threading, uvloop
from baton_serve.workers.handshake.resolver import Resolver
asked = threading.Event()
def hang(host):
    asked.set()
    threading.Event().wait()
async def main():
    asking = asyncio.create_task(Resolver(hang, 8).addresses("hung"))
    await asyncio.to_thread(asked.wait)
    asking.cancel()
uvloop.run(main())
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=PATIENCE_S)


async def test_who_asks_again_waits_for_the_lookup_that_runs() -> None:
    with name_server() as names:
        resolver = Resolver(names.look_up, 8)
        first = asyncio.create_task(resolver.addresses("slow"))
        assert await asyncio.to_thread(names.questions.acquire, timeout=PATIENCE_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        names.known["other"] = ["192.0.2.1"]
        second = asyncio.create_task(resolver.addresses("slow"))
        assert await resolver.addresses("other") == ("192.0.2.1",)
        names.let_go()
        with pytest.raises(OSError, match="not known"):
            await second
        assert names.asked == {"slow": 1, "other": 1}
        names.known["slow"] = ["192.0.2.2"]
        assert await resolver.addresses("slow") == ("192.0.2.2",)


async def test_no_more_names_are_looked_up_at_once_than_allowed() -> None:
    with name_server(good=["127.0.0.1"]) as names:
        reach = fetcher(names.look_up, max_lookups=2)
        async with Server(1).served() as server:
            hung = [asyncio.create_task(reach.fetch(target(1, name))) for name in ("a", "b", "b")]
            for _ in range(2):
                assert await asyncio.to_thread(names.questions.acquire, timeout=PATIENCE_S)
            good = target(server.port, "good")
            assert await reason_of(asyncio.create_task(reach.fetch(good))) is HandshakeReason.TOO_MANY
            assert await reach.fetch(target(server.port)) == server.ranks
            names.let_go()
            assert {await reason_of(task) for task in hung} == {HandshakeReason.REFUSED}
            assert await reach.fetch(good) == server.ranks
    assert names.asked == {"a": 1, "b": 1, "good": 1}


@pytest.mark.parametrize(
    ("lookup", "words"),
    [
        (lambda host: [], "has no address"),
        (lambda host: host.encode("ascii").decode("utf-16"), "cannot be a host name"),
    ],
)
async def test_a_name_without_an_address_is_refused(lookup: Lookup, words: str) -> None:
    with pytest.raises(HandshakeError, match=words) as caught:
        await fetcher(lookup).fetch(target(80, "odd"))
    assert caught.value.reason is HandshakeReason.REFUSED


async def test_families_take_turns_and_few_addresses_are_tried() -> None:
    found = ["2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2", "2001:db8::3"]
    assert await Resolver(lambda host: found, 8).addresses("h") == ("2001:db8::1", "192.0.2.1", "2001:db8::2")
    assert len(found) > MAX_ADDRESSES


def test_this_machine_knows_itself() -> None:
    assert "127.0.0.1" in look_up("localhost")


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """Nothing sent there is ever answered: a listener whose queue is full drops what comes."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind((host, port))
        listener.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex((host, port))
        yield


async def test_an_address_that_swallows_everything_does_not_cost_the_whole_timeout() -> None:
    names = {"twice": ["127.0.0.2", "127.0.0.1"]}
    async with Server(4).served() as server:
        with black_hole("127.0.0.2", server.port):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asyncio.open_connection("127.0.0.2", server.port)
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(PATIENCE_S):
                assert (
                    await fetcher(names.__getitem__, try_s=0.5).fetch(target(server.port, "twice", 4)) == server.ranks
                )
            waited_s = asyncio.get_running_loop().time() - began
        assert 0.5 <= waited_s < 1.0, "once, not for every rank"


async def test_an_address_that_refuses_is_passed_over() -> None:
    names = {"twice": ["127.0.0.2", "127.0.0.1"], "closed": ["127.0.0.2", "127.0.0.3"]}
    reach = fetcher(names.__getitem__)
    async with Server(2).served() as server:
        assert await reach.fetch(target(server.port, "twice", 2)) == server.ranks
        with pytest.raises(HandshakeError, match=r"^refused: closed port .*127\.0\.0\.3"):
            await reach.fetch(target(server.port, "closed", 2))


async def test_connections_are_bounded_in_all_and_nobody_waits_for_another_engine() -> None:
    """Engines whose first rank answers and whose other ranks hang: the first get eight connections, the last one."""
    reach = fetcher()
    num_full = MAX_EXTRA_CONNECTIONS // (MAX_RANKS_AT_ONCE - 1)
    num_engines = num_full + 10
    async with Server(64, silent=lambda rank: rank > 0).served() as bad, Server(16).served() as good:
        hung = [asyncio.create_task(reach.fetch(target(bad.port, num_ranks=64))) for _ in range(num_engines)]
        await bad.until_waiting(num_engines + MAX_EXTRA_CONNECTIONS)
        async with asyncio.timeout(PATIENCE_S):
            assert await reach.fetch(target(good.port, num_ranks=16)) == good.ranks
        assert not any(task.done() for task in hung)
        assert bad.num_waiting == num_engines + MAX_EXTRA_CONNECTIONS
        await gone(hung)
        await bad.until_waiting(0)
        again = asyncio.create_task(reach.fetch(target(bad.port, num_ranks=64)))
        await bad.until_waiting(MAX_RANKS_AT_ONCE)
        await gone([again])

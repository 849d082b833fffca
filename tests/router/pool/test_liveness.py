"""Whether a worker lives that has nothing to say, with a clock that only the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.pool.liveness import LOOKS, Liveness
from tests.kits.patience import PATIENCE_S
from tests.kits.router.stub_workers import StubWorker
from tests.kits.router.workers import new_worker

#: Between two looks; the tests do not wait for the silence itself.
LOOK_S = 0.002
SILENCE_S = LOOK_S * LOOKS


class Bench:
    """One worker, and a clock that stands still."""

    def __init__(self, stub: StubWorker, upstream: HttpClient) -> None:
        self.stub = stub
        self.upstream = upstream
        self.now_s = 1000.0
        self.worker = new_worker(stub.name, stub.url, Role.DECODE, 8)
        self.signs = Liveness(upstream, lambda: self.now_s)

    def wait(self, silence_s: float = SILENCE_S) -> asyncio.Task[None]:
        return asyncio.create_task(self.signs.until_silent(self.worker, silence_s))

    async def asked(self, num_times: int) -> None:
        """The clock runs until the worker has been asked so many times more."""
        wanted = self.stub.num_health + num_times
        async with asyncio.timeout(PATIENCE_S):
            while self.stub.num_health < wanted:
                self.now_s += LOOK_S
                await asyncio.sleep(LOOK_S)


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    stub, upstream = StubWorker("decode"), HttpClient(connect_timeout_s=5)
    await stub.start()
    yield Bench(stub, upstream)
    stub.health_gate.set()
    await upstream.close()
    await stub.stop()


@pytest.mark.parametrize("num_waiting", [1, 20])
async def test_a_worker_that_does_not_answer_is_silent(bench: Bench, num_waiting: int) -> None:
    await bench.stub.stop()
    waits = [bench.wait() for _ in range(num_waiting)]
    async with asyncio.timeout(PATIENCE_S):
        while not all(wait.done() for wait in waits):
            bench.now_s += LOOK_S
            await asyncio.sleep(LOOK_S)
    await asyncio.gather(*waits)
    assert bench.now_s >= 1000 + SILENCE_S


async def test_a_worker_that_answers_is_not_silent(bench: Bench) -> None:
    wait = bench.wait()
    for _ in range(3 * LOOKS):
        await bench.asked(1)
        while bench.worker.standing.answered_s != bench.now_s:  # noqa: ASYNC110 (the far side of a socket has no event)
            await asyncio.sleep(0)
    assert not wait.done()
    wait.cancel()


async def test_a_worker_that_announces_itself_is_not_asked(bench: Bench) -> None:
    wait = bench.wait()
    for _ in range(3 * LOOKS):
        bench.now_s += LOOK_S
        bench.worker.report(WorkerLoad(), bench.now_s)
        await asyncio.sleep(LOOK_S)
    assert (wait.done(), bench.stub.num_health) == (False, 0)
    wait.cancel()


async def test_many_requests_ask_a_worker_once_and_each_may_leave(bench: Bench) -> None:
    bench.stub.health_gate.clear()
    waits = [bench.wait(silence_s=600) for _ in range(20)]  # so each of them looks once only
    await bench.asked(1)
    assert bench.stub.num_health == 1
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert repr(bench.signs) == "<Liveness asking 0 workers>"

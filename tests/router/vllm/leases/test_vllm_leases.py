"""Real NIXL agents in two processes, a real side channel, and leases by vLLM's rules."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from baton_serve.core.leases.store import LeaseState
from baton_serve.router.vllm.leases.book import AlreadyHeldError
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel import SideChannels
from baton_serve.router.vllm.leases.vllm_leases import VllmLeases
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import eventually
from tests.kits.vllm.prefill_worker import PrefillWorker, prefill_worker

#: The shortest that a setting allows: two seconds are added by each renewal, of which there are two in a second.
SHORT_S = 3
LEASE = "cmpl-0123456789abcdef0123456789abcdef-0-89abcdef"


class Over:
    """Collects what is said about the end of a lease."""

    def __init__(self) -> None:
        self.states: list[LeaseState] = []
        self.came = asyncio.Event()

    def __call__(self, state: LeaseState) -> None:
        self.states.append(state)
        self.came.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.came.wait()


@asynccontextmanager
async def leases_of(duration_s: int) -> AsyncIterator[VllmLeases]:
    leases = VllmLeases(duration_s)
    try:
        yield leases
    finally:
        await leases.close()


async def broken(_channels: SideChannels, _where: RemoteEngine) -> list[bytes]:
    raise KeyError("a bug")


async def endless(_channels: SideChannels, _where: RemoteEngine) -> list[bytes]:
    """One more rank to ask, again and again."""
    await asyncio.Event().wait()
    return []


async def connected(leases: VllmLeases, worker: PrefillWorker) -> None:
    """Wait until the agent runs and is connected. On a busy machine its start takes longer than a short lease lasts."""
    renewed = asyncio.create_task(worker.next("renewed"))
    while not renewed.done():
        over = Over()
        lease = leases.hold(worker.where, "first", over)
        ended = asyncio.create_task(over.came.wait())
        await asyncio.wait({renewed, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        lease.confirmed()
    await renewed


@pytest.mark.slow
async def test_a_lease_outlives_four_durations_and_expires_without_renewal() -> None:
    async with prefill_worker(duration_s=SHORT_S) as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        over = Over()
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, over)
        await worker.next("renewed")  # from here on there is nothing to wait for but time
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 4 * SHORT_S
        while loop.time() < end_s:
            assert (await worker.next("renewed", "expired"))["event"] == "renewed"
            assert (lease.remaining_ms() or 0) > 0
        lease.given()
        lease.confirmed()
        assert (await worker.next("expired"))["id"] == LEASE
        assert over.states == []
        assert len(leases) == 0


async def test_a_release_frees_the_blocks_of_every_rank_and_is_sent_once() -> None:
    async with prefill_worker(tp_size=2, pp_size=2) as worker, leases_of(60) as leases:
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, Over())
        await worker.next("renewed")
        lease.release()
        lease.release()
        freed = [await worker.next("released", "expired", "potentially invalid") for _ in range(4)]
        assert [event["event"] for event in freed] == ["released"] * 4
        assert sorted(event["rank"] for event in freed) == [[0, 0], [0, 1], [1, 0], [1, 1]]
        await leases.close()
        assert leases.counters()["release_sent"] == 1


async def test_every_rank_is_asked_once_the_first_one_first() -> None:
    async with prefill_worker(tp_size=2) as worker, leases_of(60) as leases:
        leases.hold(worker.where, LEASE, Over())
        leases.hold(worker.where, "other", Over())
        assert [(await worker.next("asked"))["rank"] for _ in range(2)] == [[0, 0], [0, 1]]
        renewed = await worker.any_event()
        assert (renewed["event"], sorted(renewed["ids"])) == ("renewed", sorted([LEASE, "other"]))


async def test_the_engine_of_a_worker_that_is_met_is_connected_before_its_first_lease() -> None:
    async with prefill_worker() as worker, leases_of(60) as leases:
        leases.meet(worker.where)
        assert (await worker.any_event())["event"] == "asked"
        await eventually(lambda: "connected=1" in repr(leases))
        lease = leases.hold(worker.where, LEASE, Over())
        assert (await worker.any_event())["event"] == "renewed", "nothing is asked once more"
        leases.forget(worker.where.engine_id)
        assert "connected=1" in repr(leases), "a lease is held"
        lease.confirmed()
        leases.forget(worker.where.engine_id)
        assert "connected=0" in repr(leases)


async def test_the_other_ranks_of_a_worker_that_is_met_are_connected_at_its_first_lease() -> None:
    async with prefill_worker(tp_size=2) as worker, leases_of(60) as leases:
        where = worker.where
        leases.meet(type(where)(engine_id=where.engine_id, host=where.host, port=where.port))
        await eventually(lambda: "connected=1" in repr(leases))
        await worker.grant(LEASE)
        lease = leases.hold(where, LEASE, Over())
        renewed = [await worker.next("renewed") for _ in range(2)]
        assert sorted(event["rank"] for event in renewed) == [[0, 0], [0, 1]]
        lease.release()
        assert [(await worker.next("released", "expired"))["event"] for _ in range(2)] == ["released"] * 2


async def test_a_release_before_the_engine_is_connected_is_sent_when_it_is() -> None:
    async with prefill_worker() as worker, leases_of(60) as leases:
        await worker.grant(LEASE)
        leases.hold(worker.where, LEASE, Over()).release()
        assert len(leases) == 0
        assert (await worker.next("released", "expired"))["event"] == "released"


async def test_blocks_that_a_d_may_be_reading_are_not_released() -> None:
    async with prefill_worker(duration_s=SHORT_S) as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        leases.use_expected(worker.where.engine_id, 0)
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, Over())
        await worker.next("renewed")
        lease.given()
        lease.release()
        assert (await worker.next("released", "expired"))["event"] == "expired"
        assert leases.use_expected(worker.where.engine_id, 1) == 1
        assert leases.counters()["abandoned"] == 1


async def test_the_releases_that_are_left_are_sent_at_the_end() -> None:
    async with prefill_worker() as worker:
        leases = VllmLeases(60)
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, Over())
        await worker.next("renewed")
        lease.release()
        await leases.close()
        assert (await worker.next("released", "expired"))["event"] == "released"


@pytest.mark.slow
async def test_a_p_that_dies_costs_its_own_leases_only() -> None:
    async with prefill_worker() as dead, prefill_worker() as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        await connected(leases, dead)
        over, other = Over(), Over()
        leases.hold(dead.where, LEASE, over)
        await dead.next("renewed")
        await dead.kill()
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, other)
        await over.wait()
        assert over.states == [LeaseState.EXPIRED]
        assert (other.states, len(leases), leases.counters()["agent_restarted"]) == ([], 1, 0)
        assert (lease.remaining_ms() or 0) > 0


@pytest.mark.slow
async def test_renewal_goes_on_after_the_agents_process_was_killed() -> None:
    async with prefill_worker(duration_s=30) as worker, leases_of(30) as leases:
        await worker.grant(LEASE)
        lease = leases.hold(worker.where, LEASE, Over())
        await worker.next("renewed")
        assert leases._process.pid is not None
        os.kill(leases._process.pid, signal.SIGKILL)
        await worker.next("asked")
        await worker.next("renewed")
        assert leases.counters()["agent_restarted"] == 1
        lease.release()
        await worker.next("released")


@pytest.mark.slow
async def test_an_agent_that_hangs_is_replaced() -> None:
    async with prefill_worker(duration_s=SHORT_S) as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        hung = leases._process.pid
        assert hung is not None
        end_of_hung = os.pidfd_open(hung)  # readable once the process has ended
        os.kill(hung, signal.SIGSTOP)
        leases.hold(worker.where, LEASE, Over())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(select.select, [end_of_hung], [], [])
        os.close(end_of_hung)
        await connected(leases, worker)
        assert leases.counters()["agent_restarted"] == 1


@pytest.mark.slow
async def test_an_agent_that_hangs_before_it_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with prefill_worker() as worker, leases_of(60) as leases:
        with monkeypatch.context() as brief:
            brief.setattr("baton_serve.router.vllm.leases.vllm_leases.START_LIMIT_MS", 10)
            leases.meet(worker.where)
            await eventually(lambda: leases._process.pid is not None)
            assert leases._process.pid is not None
            os.kill(leases._process.pid, signal.SIGSTOP)
        await eventually(lambda: leases.counters()["agent_restarted"] == 1)
        await worker.next("asked")


@pytest.mark.slow
async def test_an_agent_that_hangs_before_an_engine_is_connected_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with prefill_worker() as first, prefill_worker() as worker, leases_of(60) as leases:
        await connected(leases, first)
        assert leases._process.pid is not None
        os.kill(leases._process.pid, signal.SIGSTOP)
        with monkeypatch.context() as brief:
            brief.setattr("baton_serve.router.vllm.leases.vllm_leases.ANSWER_LIMIT_MS", 10)
            leases.meet(worker.where)
            await worker.next("asked")
            await eventually(lambda: leases.counters()["agent_restarted"] == 1)
        await worker.next("asked")


@pytest.mark.parametrize(("ask_all", "why"), [(broken, "KeyError('a bug')"), (endless, "do not answer within 0.01 s")])
async def test_an_engine_whose_ranks_cannot_be_asked_is_given_up_for_now(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ask_all: Any, why: str
) -> None:
    monkeypatch.setattr("baton_serve.router.vllm.leases.vllm_leases.CONNECT_S", 0.01)
    monkeypatch.setattr(SideChannels, "ask_all", ask_all)
    # Whoever reads the log learns of a bug as well, which is not looked at here.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    async with leases_of(60) as leases:
        leases.meet(RemoteEngine(engine_id="e1", host="127.0.0.1", port=5600))
        await eventually(lambda: leases.counters()["connect_failed"] > 1)
        assert f"e1 are not renewed, because it cannot be connected: {why}" in caplog.text.replace("its ranks ", "")


@pytest.mark.slow
async def test_a_side_channel_that_does_not_answer_delays_nobody() -> None:
    async with prefill_worker(spoil="silent") as silent, prefill_worker() as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        over = Over()
        leases.hold(silent.where, LEASE, over)
        await silent.next("asked")
        leases.hold(worker.where, LEASE, Over())
        await worker.next("renewed")
        await over.wait()
        assert over.states == [LeaseState.EXPIRED]


@pytest.mark.slow
async def test_an_engine_that_was_replaced_is_asked_about_no_other_rank(caplog: pytest.LogCaptureFixture) -> None:
    async with prefill_worker() as worker, leases_of(SHORT_S) as leases:
        await connected(leases, worker)
        gone = type(worker.where)(engine_id="gone", host="127.0.0.1", port=worker.where.port, tp_size=2)
        over = Over()
        leases.hold(gone, LEASE, over)
        await over.wait()
        assert f"vLLM engine gone is gone: another one answers on 127.0.0.1:{gone.port}" in caplog.text
        facts = await leases.query("127.0.0.1", gone.port)  # its listener lives
        assert facts.engine_id == worker.where.engine_id


async def test_a_lease_is_held_once_and_over_once() -> None:
    async with prefill_worker() as worker, leases_of(60) as leases:
        over = Over()
        lease = leases.hold(worker.where, LEASE, over)
        assert leases.tracks(worker.where.engine_id, LEASE)
        with pytest.raises(AlreadyHeldError):
            leases.hold(worker.where, LEASE, Over())
        with pytest.raises(ValueError, match="the id of a lease"):
            leases.hold(worker.where, "a,b", Over())
        lease.release()
        lease.confirmed()
        lease.given()
        assert (lease.remaining_ms(), leases.tracks(worker.where.engine_id, LEASE), over.states) == (0, False, [])
        assert (leases.counters()["held"], leases.counters()["release_asked"]) == (1, 1)

"""The front's leases over a real keeper: whatever comes first, grant or abort, nothing stays held."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.store import LeaseState
from baton_serve.workers.leases.engine_leases import EngineLeases
from baton_serve.workers.leases.keeper import LeaseKeeper
from tests.kits.worker.front import ScriptedEngine

ENGINE = "e0"


class Kept:
    """An engine with one lease, ``lease-0`` for request ``r``, its keeper and the store."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.engine.lease("lease-0", "r")
        self.store = MemoryLeaseStore()
        self.failures: list[Exception] = []
        self.keeper = LeaseKeeper(
            self.store,
            ENGINE,
            on_end=self.engine.end_lease,
            on_failed=self.failures.append,
            duration_ms=600_000,
        )
        self.engine.on_lease_end = self.keeper.tell
        self.leases = EngineLeases(self.keeper, self.engine)

    @property
    def held(self) -> list[str]:
        """Leases that the store still promises."""
        return [lease.lease_id for lease in self.store.held(ENGINE) if lease.remaining_ms > 0]

    def check_nothing_held(self) -> None:
        assert self.engine.held == {}
        assert len(self.keeper) == 0


@asynccontextmanager
async def keeping() -> AsyncIterator[Kept]:
    kept = Kept()
    kept.keeper.start()
    try:
        yield kept
    finally:
        await kept.keeper.stop()
        assert kept.held == [] and kept.failures == []


async def test_a_lease_is_granted_and_dropped_by_its_request() -> None:
    async with keeping() as kept:
        assert kept.leases.grant("lease-0")
        assert len(kept.keeper) == 1
        assert not kept.leases.drop_request("another")
        assert kept.leases.drop_request("r")
        kept.check_nothing_held()
        assert not kept.leases.drop_request("r")


async def test_leases_are_released_by_their_names_granted_or_not() -> None:
    async with keeping() as kept:
        kept.engine.lease("lease-1", "r")
        kept.engine.lease("lease-2", "r")
        assert kept.leases.grant("lease-0")
        assert kept.leases.release(["lease-0", "lease-1", "never"]) == 2
        assert list(kept.engine.held) == ["lease-2"]
        assert kept.leases.release(["lease-0", "lease-1"]) == 0
        assert kept.leases.release(["lease-2"]) == 1
        kept.check_nothing_held()
        assert kept.keeper.stats.dropped == 1


async def test_all_leases_of_a_suffix_are_dropped_granted_or_not() -> None:
    async with keeping() as kept:
        kept.engine.lease("lease-1", "1r")
        kept.engine.lease("lease-2", "r-another-s")
        assert kept.leases.grant("lease-0")
        assert kept.leases.grant("lease-2")
        assert kept.leases.drop_all("r") == 2
        assert kept.engine.held == {"lease-2": "r-another-s"}
        assert not kept.leases.grant("lease-1")
        assert kept.leases.drop_all("r") == 0
        assert kept.leases.drop_all("-s") == 1
        kept.check_nothing_held()


async def test_an_abort_before_the_grant_leaves_nothing_to_grant() -> None:
    async with keeping() as kept:
        assert kept.leases.drop_request("r")
        assert not kept.leases.grant("lease-0")
        kept.check_nothing_held()
        assert kept.keeper.stats.granted == 0


async def test_a_peer_that_has_read_leaves_nothing_to_abort() -> None:
    async with keeping() as kept:
        assert kept.leases.grant("lease-0")
        kept.engine.end_lease("lease-0", LeaseState.DONE)
        assert not kept.leases.drop_request("r")
        kept.check_nothing_held()

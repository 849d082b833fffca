"""Fixtures of the lease tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton_serve.core.leases.store import LeaseStore
from tests.kits.leases.harness import Harness, MemoryHarness, RedisHarness
from tests.kits.leases.wrong_clock import SHIFT_S, set_wrong

#: Redis' own clock is what counts: for a client whose clock of the day is hours off, everything is as for the others.
CLOCKS_S = {"redis": 0, "redis, a fast clock here": SHIFT_S, "redis, a slow clock here": -SHIFT_S}


@pytest.fixture(params=["memory", *CLOCKS_S])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    if request.param == "memory":
        yield MemoryHarness()
        return
    if shift_s := CLOCKS_S[request.param]:
        set_wrong(monkeypatch, shift_s)
    redis_harness = RedisHarness(request.getfixturevalue("redis_url"))
    yield redis_harness
    redis_harness.close()


@pytest.fixture
def store(harness: Harness) -> LeaseStore:
    """The harness' store."""
    return harness.store

"""Fixtures of the lease tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from leases_harness import Clock, Harness, MemoryHarness, RedisHarness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["memory", "redis"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if request.param == "memory":
        yield MemoryHarness()
        return
    redis_harness = RedisHarness(request.getfixturevalue("redis_url"))
    yield redis_harness
    redis_harness.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()

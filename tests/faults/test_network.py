"""The network between any two of router, P, D and Redis is cut, both ways or one way, or slow, under requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from baton_serve.baton.cluster.cluster import REDIS
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.shape import Shape
from tests.kits.whole.faults import LONG, WORKER_FLAGS, Baton, running, skip, under_load
from tests.kits.whole.namespaces import Network, SpreadCluster, why_not

if TYPE_CHECKING:
    from tests.conftest import Tell

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

#: A second P and a second D, which nobody is cut from, stand in where the table says that others do.
SHAPE = Shape(prefill=2, decode=2, routers=1, worker_flags=WORKER_FLAGS)
ROUTER, P, D = "router-0", "prefill-0", "decode-0"
#: Shorter than any timeout but those of a connection and of Redis; longer than those of a read and of a first byte.
CUT_S, LONG_CUT_S = 5.0, 40.0
DELAY_S = 0.2
#: Longest time until nothing is held: a read that was given up keeps D's blocks until it has really ended.
SETTLE_S = 60.0
PAIRS = list(itertools.combinations([ROUTER, P, D, REDIS], 2))
#: The rest of the matrix takes FAULTS_LONG: every direction alone, every pair slow, and every pair cut for longer.
BOTH_WAYS = [(one, other, "both") for one, other in PAIRS]
ONE_WAY = [(one, other, "one way") for pair in PAIRS for one, other in (pair, pair[::-1])]
QUICK_ONE_WAY = [(P, D, "one way"), (D, P, "one way")]
QUICK_SLOW = [(P, D), (ROUTER, REDIS)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def baton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Baton]:
    if reason := why_not():
        skip(reason)
    folder = tmp_path_factory.mktemp("network")
    with Network([*SHAPE.specs, REDIS]) as network:
        async with running(folder, SHAPE, cluster=SpreadCluster(folder, SHAPE, network)) as started:
            yield started


async def until(met: Callable[[], bool], traffic: Traffic) -> None:
    """Until the fault has met a packet: for some seconds others may read from others, and no two of them speak."""
    async with asyncio.timeout(SETTLE_S):
        while not met():
            await traffic.ended(1)


async def cut(baton: Baton, one: str, other: str, how: str, seconds: float, tell: Tell) -> None:
    assert isinstance(baton.cluster, SpreadCluster)
    network = baton.cluster.network
    before = network.num_dropped

    async def hurt(traffic: Traffic) -> None:
        network.cut(one, other)
        if how == "both":
            network.cut(other, one)
        try:
            await asyncio.sleep(seconds)
            await until(lambda: network.num_dropped > before, traffic)
        finally:
            network.heal()

    told = await under_load(baton, hurt, settle_s=SETTLE_S)
    dropped = network.num_dropped - before
    tell(f"{one} to {other} cut, {how}, {dropped} packets: {told}")
    assert told.num_across and dropped


@pytest.mark.parametrize(("one", "other", "how"), [*BOTH_WAYS, *(ONE_WAY if LONG else QUICK_ONE_WAY)])
async def test_cut_for_some_seconds(baton: Baton, one: str, other: str, how: str, tell: Tell) -> None:
    await cut(baton, one, other, how, CUT_S, tell)


@pytest.mark.skipif(not LONG, reason="FAULTS_LONG is not set")
@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_cut_for_longer_than_anybody_waits(baton: Baton, one: str, other: str, tell: Tell) -> None:
    await cut(baton, one, other, "both", LONG_CUT_S, tell)


@pytest.mark.parametrize(("one", "other"), PAIRS if LONG else QUICK_SLOW)
async def test_slow(baton: Baton, one: str, other: str, tell: Tell) -> None:
    """200 ms more each way."""
    assert isinstance(baton.cluster, SpreadCluster)
    network = baton.cluster.network
    before = network.num_delayed

    async def hurt(traffic: Traffic) -> None:
        network.delay(one, other, DELAY_S)
        network.delay(other, one, DELAY_S)
        try:
            await traffic.ended(12)
            await until(lambda: network.num_delayed > before, traffic)
        finally:
            network.heal()

    told = await under_load(baton, hurt, settle_s=SETTLE_S)
    delayed = network.num_delayed - before
    tell(f"{one} and {other} slow, {delayed} packets: {told}")
    assert told.num_across and delayed

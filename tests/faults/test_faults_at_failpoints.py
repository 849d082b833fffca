"""A process dies at every dangerous line, then dawdles there: all get the right tokens, and nothing stays held.

One Baton for all of these tests. Each starts one process again, armed, lets clients ask until it has come by twice, and
looks at the end whether all is as it was.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from baton.torture.asks import make_asks
from baton.torture.cluster import Cluster, Shape
from baton.torture.nemesis import Nemesis
from baton.torture.reference import answer_all
from baton.torture.report import timeline
from baton.torture.settle import settle
from baton.torture.storm import Outcome, Plan
from baton.torture.traffic import Traffic
from baton.torture.validate import judge
from protocol.failpoints import FAILPOINTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from baton.torture.records import Answer, Ask

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SEED = 20
NUM_CLIENTS = 6
#: Who comes by a failpoint, by the first part of its name.
VICTIM = {"worker": "prefill-0", "rank": "decode-0", "router": "router-0"}
#: So few blocks that P overwrites what D has not read yet as soon as nothing holds it.
SHAPE = Shape(prefill=2, decode=2, routers=2, worker_flags={"num-blocks": 256})


class Baton:
    """The processes, and what clients ask them."""

    def __init__(self, cluster: Cluster, asks: list[Ask], answers: dict[int, Answer]) -> None:
        self.cluster = cluster
        self.asks = asks
        self.answers = answers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def baton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Baton]:
    folder = tmp_path_factory.mktemp("faults")
    asks = make_asks(SEED, 16)
    answers = await answer_all(folder, asks)
    async with Cluster(folder, SHAPE) as cluster:
        yield Baton(cluster, [ask for ask in asks if ask.number in answers], answers)


async def check(baton: Baton, traffic: Traffic, nemesis: Nemesis) -> None:
    """Everybody got what is theirs, and nobody holds anything."""
    held = await settle(baton.cluster)
    outcome = Outcome(Plan(SEED), faults=nemesis.faults, surprises=nemesis.surprises, held=held)
    judged = [(one, judge(one, baton.answers[one.ask], nemesis.faults)) for one in traffic.attempts]
    outcome.judged = judged
    folder: Path = baton.cluster.folder
    told = ["\n".join(timeline(outcome, attempt, why, folder)) for attempt, why in outcome.wrong[:3]]
    assert outcome.good, "\n".join([*outcome.surprises, str(outcome.held), *told])


@pytest.mark.parametrize("name", FAILPOINTS)
async def test_dies_there_and_then_dawdles_there(baton: Baton, name: str) -> None:
    victim = VICTIM[name.partition(".")[0]]
    log = baton.cluster.folder / f"{victim}.log"
    async with aclosing(Nemesis(baton.cluster, SEED, failpoint_share=0)) as nemesis:
        await nemesis.arm(victim, f"{name}=kill@2", then=f"{name}=sleep:500@2")
        async with Traffic(baton.cluster, baton.asks, SEED, NUM_CLIENTS) as traffic:
            await nemesis.died(victim)
            await nemesis.calm()
            while f"failpoint {name}: sleep" not in log.read_text():
                await traffic.ended(1)
            await traffic.finish()
        assert [fault.what for fault in nemesis.faults] == ["kill", "failpoint"]
        await check(baton, traffic, nemesis)

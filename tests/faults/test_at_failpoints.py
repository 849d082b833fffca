"""A process dies at every dangerous line, then dawdles there: all get the right tokens, and nothing stays held.

One Baton for all of these tests. Each starts one process again, armed, lets clients ask until it has come by, and looks
at the end whether all is as it was. A D that dies before its first token must not cost a second prefill either.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from baton_serve.baton.cluster.cluster import POLL_S, Cluster
from baton_serve.baton.torture.clients.client import Manner
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.faults.nemesis import Nemesis
from baton_serve.baton.torture.records import Question
from baton_serve.baton.torture.run import RunOutcome, RunPlan
from baton_serve.baton.torture.shape import Shape
from baton_serve.core.process.failpoints import FAILPOINTS
from tests.kits.whole.faults import Baton, check, running

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SEED = 20
NUM_CLIENTS = 6
#: Who comes by a failpoint, by the first part of its name.
VICTIM = {"worker": "prefill-0", "rank": "decode-0", "router": "router-0"}
D = VICTIM["rank"]
READING = "rank.read.arrived"
AT_READS = [name for name in FAILPOINTS if name.startswith("rank.read.")]
#: Requests that a D has taken to read their blocks when it is killed from outside.
NUM_READS = 2
#: So few blocks that P overwrites what D has not read yet as soon as nothing holds it.
SHAPE = Shape(prefill=2, decode=2, routers=2, worker_flags={"num-blocks": 256})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def baton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Baton]:
    async with running(tmp_path_factory.mktemp("faults"), SHAPE, seed=SEED) as started:
        yield started


async def check_all(baton: Baton, traffic: Traffic, nemesis: Nemesis) -> None:
    """Everybody got what is theirs, and nobody holds anything."""
    outcome = RunOutcome(RunPlan(SEED), faults=nemesis.faults, surprises=nemesis.surprises)
    await check(baton, outcome, traffic.attempts)


@pytest.mark.parametrize("name", FAILPOINTS)
async def test_dies_there_and_then_dawdles_there(baton: Baton, name: str) -> None:
    victim = VICTIM[name.partition(".")[0]]
    log = baton.cluster.folder / f"{victim}.log"
    async with aclosing(Nemesis(baton.cluster, SEED, failpoint_share=0)) as nemesis:
        await nemesis.arm(victim, f"{name}=kill@2", then=f"{name}=sleep:500@2")
        async with Traffic(baton.cluster, baton.questions, SEED, NUM_CLIENTS) as traffic:
            await nemesis.died(victim)
            await nemesis.calm()
            while f"failpoint {name}: sleep" not in log.read_text():
                await traffic.ended(1)
            await traffic.finish()
        assert [fault.what for fault in nemesis.faults] == ["kill", "failpoint"]
        await check_all(baton, traffic, nemesis)


def handed_off(baton: Baton) -> list[Question]:
    """The questions that cost one hand-off each: for one prompt, which P does not answer alone."""
    return [
        question
        for question in baton.questions
        if (baton.answers[question.number].num_tokens or (0, 0))[1] > 1
        and not ({"echo", "prompt_logprobs"} & question.body.keys())
        and not isinstance(question.body.get("prompt", [0])[0], list)
    ]


async def ask_on(traffic: Traffic, questions: list[Question], until: Callable[[], bool]) -> None:
    """Some clients ask one question after another, streamed and not, and wait for each answer."""

    async def client(number: int) -> None:
        for turn in itertools.count(number):
            question = questions[turn % len(questions)]
            manner = Manner(stream=question.may_stream and turn % 2 > 0)
            await traffic.ask(question, manner, random.Random(turn))
            if until():
                return

    await asyncio.gather(*map(client, range(NUM_CLIENTS)))


async def counted(cluster: Cluster, kind: str) -> Counter[str]:
    """What the workers of a kind that serve have counted since their starts."""
    found: Counter[str] = Counter()
    for name in cluster.up(kind):
        answer = await cluster.http.get(f"{cluster.processes[name].url}/metrics")
        families = text_string_to_metric_families(answer.text)
        for sample in (sample for family in families for sample in family.samples):
            found[sample.name.removeprefix("baton_worker_").removesuffix("_total")] += int(sample.value)
    return found


async def until_reads_wait(cluster: Cluster, name: str) -> None:
    """A rank of this D stands still in its first read, and other requests wait behind that one."""
    log = cluster.folder / f"{name}.log"
    while True:
        load = (await cluster.state(name))["load"]
        num_requests = sum(load[key] for key in ("running", "waiting", "reading"))
        if num_requests >= NUM_READS and f"failpoint {READING}: stop" in log.read_text():
            return
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True)
class Prefills:
    """What the workers have counted: hand-offs; prompt tokens that a P computed or had; those that a D computed."""

    num_hand_offs: int
    num_tokens: int
    num_tokens_of_d: int


async def prefills(cluster: Cluster) -> Prefills:
    """Up to now, of those that serve."""
    p, d = await counted(cluster, "prefill"), await counted(cluster, "decode")
    return Prefills(p["hand_offs"], p["prefill_tokens"] + p["prefix_cache_hits"], d["prefill_tokens"])


async def check_prefills(baton: Baton, traffic: Traffic, before: Prefills) -> None:
    """Since ``before`` each prompt was prefilled once, by a P. No P has died: what it had counted would be gone."""
    now = await prefills(baton.cluster)
    prompts = [attempt.answer.num_tokens[0] for attempt in traffic.attempts if attempt.answer.num_tokens]
    assert now == Prefills(
        before.num_hand_offs + len(traffic.attempts), before.num_tokens + sum(prompts), before.num_tokens_of_d
    )


@pytest.mark.parametrize("name", AT_READS)
async def test_a_d_that_dies_in_its_first_read_costs_no_prefill(baton: Baton, name: str) -> None:
    """Nobody has a token of it, and every P lives."""
    async with aclosing(Nemesis(baton.cluster, SEED, failpoint_share=0)) as nemesis:
        await nemesis.arm(D, f"{name}=kill@1")
        before = await prefills(baton.cluster)
        async with Traffic(baton.cluster, [], SEED, num_clients=0) as traffic:
            await ask_on(traffic, handed_off(baton), lambda: nemesis.num_kills == 2)
            await nemesis.calm()
        await check_all(baton, traffic, nemesis)
        await check_prefills(baton, traffic, before)


async def test_a_d_that_dies_with_reads_under_way_costs_no_prefill(baton: Baton) -> None:
    """Its rank stops when the data of the first is there, others wait behind it; then it is killed from outside."""
    async with aclosing(Nemesis(baton.cluster, SEED, failpoint_share=0)) as nemesis:
        await nemesis.arm(D, f"{READING}=stop@1")
        before = await prefills(baton.cluster)
        async with Traffic(baton.cluster, [], SEED, num_clients=0) as traffic, asyncio.TaskGroup() as group:
            group.create_task(ask_on(traffic, handed_off(baton), lambda: nemesis.num_kills == 2))
            await until_reads_wait(baton.cluster, D)
            nemesis.hurt("kill", D)
            await nemesis.calm()
        await check_all(baton, traffic, nemesis)
        await check_prefills(baton, traffic, before)

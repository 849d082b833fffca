"""A Baton under clients, something that is done to it, and whether everybody got what is theirs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from baton_serve.baton.cluster.cluster import POLL_S, Cluster
from baton_serve.baton.torture.clients.questions import make_questions
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.records import Attempt, ClientAnswer, Ending, Fault, Question
from baton_serve.baton.torture.report import timeline
from baton_serve.baton.torture.run import RunOutcome, RunPlan
from baton_serve.baton.torture.shape import Shape
from baton_serve.baton.torture.verdict.settle import settle
from baton_serve.baton.torture.verdict.validate import judge

#: Set by CI: what cannot be tested here is a failure.
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
#: Set: the long forms of these tests run as well.
LONG = bool(os.environ.get("FAULTS_LONG"))
SEED = 31
NUM_CLIENTS = 12
#: Few sequences at once, so that requests wait in every state. So few blocks that P overwrites what nothing holds.
WORKER_FLAGS = {"num-blocks": 256, "max-num-seqs": 3}
STATES = frozenset({"prefilling", "held", "reading", "decoding"})
#: So many of them at the same moment: a prefill is over too soon to wait for all.
NUM_STATES = 3
#: Longest time until requests are in every state.
STATES_TIMEOUT_S = 60.0


def skip(reason: str) -> NoReturn:
    """The machine lacks something: at home the test is left out, in CI nobody would notice that."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Baton:
    """The processes, and what clients ask them."""

    cluster: Cluster
    questions: list[Question]
    answers: dict[int, ClientAnswer]


@dataclass
class Told:
    """What came of a fault."""

    began_s: float
    ended_s: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    outcome: RunOutcome = field(default_factory=lambda: RunOutcome(RunPlan(SEED)))

    @property
    def exact(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.ending is Ending.DONE]

    @property
    def num_across(self) -> int:
        """Answered exactly, begun before the fault and ended after it had begun."""
        return sum(attempt.began_s < self.began_s < attempt.ended_s for attempt in self.exact)

    @property
    def num_meanwhile(self) -> int:
        """Answered exactly, begun and ended while it lasted."""
        return sum(self.began_s < attempt.began_s and attempt.ended_s < self.ended_s for attempt in self.exact)

    def __str__(self) -> str:
        verdicts = ", ".join(f"{name} {count}" for name, count in self.outcome.verdicts.items())
        lasted = f"{self.ended_s - self.began_s:.1f} s, across it {self.num_across}, meanwhile {self.num_meanwhile}"
        return f"{lasted}; {verdicts}"


@asynccontextmanager
async def running(
    folder: Path, shape: Shape, num_questions: int = 16, cluster: Cluster | None = None, seed: int = SEED
) -> AsyncIterator[Baton]:
    """The answers of a quiet worker, then the processes."""
    questions = make_questions(seed, num_questions)
    answers = await shape.answers(folder, questions)
    async with cluster or Cluster(folder, shape.specs) as started:
        yield Baton(started, [question for question in questions if question.number in answers], answers)


async def under_load(
    baton: Baton, hurt: Callable[[Traffic], Awaitable[None]], faults: Sequence[Fault] = (), settle_s: float = 30.0
) -> Told:
    """Clients ask; with requests in every state something is done, and undone before it returns. AssertionError when
    an answer was wrong, an error not one of those that ``faults`` allow, or something is still held."""
    async with Traffic(baton.cluster, baton.questions, SEED, NUM_CLIENTS) as traffic:
        await until_in_every_state(baton.cluster)
        told = Told(time.monotonic())
        baton.cluster.on_end = lambda _, why: told.outcome.surprises.append(why)
        await hurt(traffic)
        told.ended_s = time.monotonic()
        await traffic.ended(NUM_CLIENTS)
        await traffic.finish()
    told.attempts = traffic.attempts
    told.outcome.faults = list(faults)
    await check(baton, told.outcome, told.attempts, settle_s)
    return told


async def check(baton: Baton, outcome: RunOutcome, attempts: Sequence[Attempt], settle_s: float = 30.0) -> None:
    """AssertionError when somebody did not get what is theirs, somebody holds something, or a process just died."""
    outcome.held = await settle(baton.cluster, settle_s)
    outcome.judged = [(one, judge(one, baton.answers[one.question], outcome.faults)) for one in attempts]
    lines = [f"{attempt.status} {why}" for attempt, why in outcome.wrong]
    for attempt, why in outcome.wrong[:3]:
        lines += timeline(outcome, attempt, why, baton.cluster.folder)
    assert outcome.good, "\n".join([str(outcome.verdicts), *outcome.surprises, str(outcome.held), *lines])


async def until_in_every_state(cluster: Cluster) -> None:
    """Wait until requests have been seen in every state, and are in three of them now. TimeoutError says which."""
    seen: set[str] = set()
    try:
        async with asyncio.timeout(STATES_TIMEOUT_S):
            while True:
                now = await _states(cluster)
                seen |= now
                if seen >= STATES and len(now & STATES) >= NUM_STATES:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TimeoutError(f"in {STATES_TIMEOUT_S:.0f} s requests were seen {sorted(seen)} only") from None


async def _states(cluster: Cluster) -> set[str]:
    rows = await asyncio.gather(*(cluster.requests(name) for name in cluster.up("router")))
    return {row["state"] for some in rows for row in some}

"""One run: the right answers, a quiet time, the storm, what is left after it, and how long blocks stay in use."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton_serve.baton.cluster.cluster import REDIS, Cluster
from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.torture.clients.questions import ordinary_tokens
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.faults.nemesis import Nemesis
from baton_serve.baton.torture.shape import AnyShape, Shape
from baton_serve.baton.torture.verdict import costs
from baton_serve.baton.torture.verdict.router_log import note_deaths
from baton_serve.baton.torture.verdict.settle import QUIET_S, Resources, grown, resources, settle, settle_redis
from baton_serve.baton.torture.verdict.validate import Judgement, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from baton_serve.baton.torture.records import Attempt, Fault, Question

#: Seconds of traffic before the first fault, in which pools and connections reach their sizes.
WARM_UP_S = 5.0
#: Seconds between two lines about the progress of the storm.
NEWS_S = 10.0


@dataclass(frozen=True)
class RunPlan:
    """What a run does. Its storm ends after ``kills`` or after ``seconds``, whichever comes first."""

    seed: int
    seconds: float = float("inf")
    kills: float = float("inf")
    shape: AnyShape = field(default_factory=Shape)
    num_questions: int = 32
    num_clients: int = 12
    #: Average time between two faults, seconds.
    pause_s: float = 1.0
    #: Rounds in which ``costs`` measures when blocks are free; 0: no measurement.
    cost_rounds: int = 5


class RunError(Exception):
    """The run proves nothing. The message is one line for a person."""


@dataclass
class RunOutcome:
    """The result of a run. It is ``good`` when nothing is wrong."""

    plan: RunPlan
    judged: list[tuple[Attempt, Judgement]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Lines about processes that ended by themselves or did not come back.
    surprises: list[str] = field(default_factory=list)
    #: What processes still held when nothing ran any more, and what had grown since before the storm, by name.
    held: dict[str, str] = field(default_factory=dict)
    grown: dict[str, str] = field(default_factory=dict)
    #: Milliseconds until blocks were free, by the reason why no D will read them.
    costs: dict[str, list[float]] = field(default_factory=dict)
    #: Questions that were excluded because their answers depend on rounding.
    num_unclear: int = 0
    #: Attempts that a client made again because its connection had broken.
    num_again: int = 0
    #: Requests that have ended.
    attempts: list[Attempt] = field(default_factory=list)
    #: When the storm began, in seconds of ``time.monotonic``; 0: it has not.
    began_s: float = 0.0
    #: Whether the run got as far as looking at what is left. If not, ``held`` and ``grown`` are unknown.
    looked: bool = False
    #: The signal that ended the run early.
    interrupted: signal.Signals | None = None

    @property
    def storm_s(self) -> float:
        """The seconds from the first fault to the last answer."""
        if not (self.faults and self.attempts):
            return 0.0
        return max(0.0, max(one.ended_s for one in self.attempts) - self.faults[0].began_s)

    @property
    def verdicts(self) -> Counter[Verdict]:
        return Counter(judgement.verdict for _, judgement in self.judged)

    @property
    def wrong(self) -> list[tuple[Attempt, str]]:
        return [(attempt, one.why) for attempt, one in self.judged if one.verdict is Verdict.WRONG]

    @property
    def good(self) -> bool:
        return not (self.wrong or self.surprises or self.held or self.grown)

    @property
    def tested(self) -> bool:
        """Whether some request was answered exactly although it ended after the first fault."""
        first_s = min((fault.began_s for fault in self.faults), default=float("inf"))
        return any(one.verdict is Verdict.EXACT and attempt.ended_s > first_s for attempt, one in self.judged)


async def run(outcome: RunOutcome, cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Start the cluster, carry out the outcome's plan on it, and end it again.

    The results are put into ``outcome``, also those until a cancellation. ``tell`` is called with lines about the
    progress. Raises ChildDiedError, NoReferenceError, EmbeddedRedisError, RunError.
    """
    plan = outcome.plan
    questions = plan.shape.questions(plan.seed, plan.num_questions)
    tell(f"asking a quiet worker {len(questions)} questions, twice")
    answers = await plan.shape.answers(cluster.folder, questions)
    questions = [question for question in questions if question.number in answers]
    outcome.num_unclear = plan.num_questions - len(questions)
    tell(f"starting {', '.join(cluster.specs)}")
    kept_on = {question.number for question in questions if plan.shape.can_continue(question)}
    async with cluster, aclosing(Nemesis(cluster, plan.seed, plan.shape.frequencies)) as nemesis:
        if nemesis.spared:
            tell(f"never hurt, as the only one of its kind: {', '.join(nemesis.spared)}")
        try:
            before = await _warm_up(outcome, cluster, questions, tell)
            await _hurt(outcome, cluster, nemesis, questions, tell)
        finally:
            outcome.faults, outcome.surprises = list(nemesis.faults), nemesis.surprises
            note_deaths(cluster.folder, outcome.attempts)
            outcome.judged = [
                (
                    one,
                    judge(
                        one,
                        answers[one.question],
                        outcome.faults,
                        continues=one.question in kept_on,
                        late_s=plan.shape.late_s,
                    ),
                )
                for one in outcome.attempts
            ]
        await _look(outcome, cluster, before, tell)
        if plan.cost_rounds and not (outcome.held or outcome.surprises):
            tell("measuring when blocks are free")
            await _measure(outcome, cluster, nemesis)
    if outcome.good and not outcome.tested:
        raise RunError("nobody was answered exactly after the first fault, so it proves nothing")


@asynccontextmanager
async def _asking(outcome: RunOutcome, cluster: Cluster, questions: Sequence[Question]) -> AsyncIterator[Traffic]:
    """Let clients ask while inside. It ends when each has its answer. Requests that ended are noted in ``outcome``."""
    traffic = Traffic(cluster, questions, outcome.plan.seed, outcome.plan.num_clients)
    try:
        async with traffic:
            yield traffic
            await traffic.finish()
    finally:
        outcome.attempts += [attempt for attempt in traffic.attempts if attempt.ended_s]
        outcome.num_again += traffic.num_again


async def _warm_up(
    outcome: RunOutcome, cluster: Cluster, questions: Sequence[Question], tell: Callable[[str], None]
) -> dict[str, Resources]:
    """Run traffic before the first fault; returns the resources of each process afterwards."""
    tell(f"letting {outcome.plan.num_clients} clients ask for {WARM_UP_S:g} s in quiet, and counting what that leaves")
    async with _asking(outcome, cluster, questions):
        await asyncio.sleep(WARM_UP_S)
    outcome.held = await settle(cluster)
    return await _when_quiet(cluster)


async def _hurt(
    outcome: RunOutcome, cluster: Cluster, nemesis: Nemesis, questions: Sequence[Question], tell: Callable[[str], None]
) -> None:
    """Run the storm, until every process runs again and every client has been answered."""
    plan = outcome.plan
    tell("the storm begins")
    outcome.began_s = last_s = time.monotonic()
    async with _asking(outcome, cluster, questions) as traffic:

        def over() -> bool:
            nonlocal last_s
            now_s = time.monotonic()
            if now_s - last_s >= NEWS_S:
                last_s = now_s
                tell(f"{now_s - outcome.began_s:4.0f} s: {nemesis.num_kills} kills, {traffic.num_ended} requests ended")
            return now_s - outcome.began_s >= plan.seconds or nemesis.num_kills >= plan.kills

        await nemesis.run(over, plan.pause_s)
        tell("the storm is over; waiting until everything runs again and has answered")
        await nemesis.heal()
    await nemesis.heal()  # an armed process may have died at the last requests


async def _look(
    outcome: RunOutcome, cluster: Cluster, before: Mapping[str, Resources], tell: Callable[[str], None]
) -> None:
    """Look at what processes and Redis still hold, and at what has grown."""
    tell(f"waiting until nothing is held, then {QUIET_S:g} s more to compare what each process has")
    outcome.held |= await settle(cluster)
    if stays := await settle_redis(cluster):
        outcome.held[REDIS] = stays
    outcome.grown = grown(before, await _when_quiet(cluster))
    outcome.looked = True


async def _measure(outcome: RunOutcome, cluster: Cluster, nemesis: Nemesis) -> None:
    """Measure the costs. Blocks that do not become free are noted as held."""
    rng, tokens = random.Random(f"costs {outcome.plan.seed}"), ordinary_tokens(MODEL_DIR)
    await nemesis.disarm()
    try:
        outcome.costs = await costs.measure(cluster, nemesis, rng, tokens, outcome.plan.cost_rounds)
    except costs.CostError as error:
        outcome.held["measurement"] = str(error)


async def _when_quiet(cluster: Cluster) -> dict[str, Resources]:
    await asyncio.sleep(QUIET_S)
    return await resources(cluster)

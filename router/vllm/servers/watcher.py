"""Watches one vLLM server: asks what it is, what it serves and how busy it is, and tells the pool what has changed.

A server is used only once it has answered all questions. After that it is asked for its load, its models and its health
again and again; for its version and its side channel only when it was away, or another process has its port.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from baton_serve.core.net.client.errors import CallError, CallTimeout
from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.pool.static_worker import queue_factor
from baton_serve.router.vllm.servers.expiries import Expiries
from baton_serve.router.vllm.servers.load import MAX_PAGE_BYTES, ServerLoad
from baton_serve.router.vllm.servers.problems import About, Problems
from baton_serve.router.vllm.servers.server import EngineDeadError, NotVllmError, Server
from baton_serve.router.vllm.servers.side_channel import Answered, SideChannel

log = logging.getLogger("baton.router")

#: Rounds of questions about load between two about health and models.
ROUNDS = 10
#: Seconds until it goes on after a bug.
AFTER_BUG_S = 5.0
#: Answers in a row that may come too late before the server counts as away: its event loop may be busy for seconds.
MAX_TIMEOUTS = 3
WINDOW = (
    "Its model has a sliding window, for which vLLM hands over a block too few at some lengths of prompts: one server "
    "computes the whole of these. Load Baton's connector on both sides, and all prompts are handed over."
)
NO_CONNECTOR = (
    "It runs without NixlConnector: start vLLM with --kv-transfer-config "
    """'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' for prefill, or kv_consumer for decode."""
)


CUT_PAGE = (
    f"Its page /metrics has more than {MAX_PAGE_BYTES >> 10} KB, of which the rest is not read: "
    "as far as the numbers of its KV cache are there, they are not known."
)


class Watcher:
    """What is known of one server. ``run`` never ends by itself."""

    def __init__(
        self,
        worker: Worker,
        pool: WorkerPool,
        server: Server,
        side_channel: SideChannel,
        problems: Problems,
        expiries: Expiries,
        outcomes: Counter[str],
    ) -> None:
        """``outcomes`` counts the rounds of questions: answered, failed."""
        self._worker = worker
        self._pool = pool
        self._server = server
        self._side_channel = side_channel
        self._problems = problems
        self._expiries = expiries
        self._outcomes = outcomes
        #: Whether the server has answered everything since it was last away.
        self._is_met = False
        self._started_s: float | None = None
        self._num_timeouts = 0
        self._num_rounds = 0

    def __repr__(self) -> str:
        return f"<Watcher {self._worker.worker_id} {'met' if self._is_met else 'not met'}>"

    async def run(self, interval_s: float) -> None:
        """Ask every ``interval_s`` seconds until cancelled. It goes on after a bug: else the server would be lost."""
        try:
            while True:
                try:
                    await self._look()
                except Exception:
                    self._outcomes["failed"] += 1
                    log.exception("%s met a bug; again in %g s", self, AFTER_BUG_S)
                    await asyncio.sleep(AFTER_BUG_S)
                await asyncio.sleep(interval_s)
        finally:
            await self._side_channel.close()

    async def _look(self) -> None:
        """Ask everything once, and tell the pool."""
        try:
            await self._ask()
        except CallTimeout as error:
            self._num_timeouts += 1
            if self._num_timeouts >= MAX_TIMEOUTS or not self._is_met:
                self._away(f"Nothing answers at {self._worker.url} in time ({error}); it is asked again and again.")
        except (CallError, EngineDeadError) as error:
            self._away(f"No vLLM serves at {self._worker.url} ({error}); it is asked again and again.")
        except NotVllmError as error:
            self._is_other(f"{self._worker.url} answers, but not as vLLM does: {error}.")
        else:
            self._num_timeouts = 0
            self._outcomes["answered"] += 1
            return
        self._outcomes["failed"] += 1

    async def _ask(self) -> None:
        worker = self._worker
        version = worker.version if self._is_met else await self._server.version()
        models = await self._health_and_models()
        num_sent = worker.usage.in_flight
        load = await self._server.load()
        is_other = load.started_s != self._started_s
        if is_other and self._is_met:  # it was away between two questions
            version, models = await self._server.version(), await self._server.models()
        known = _routes_by(worker)
        try:
            worker.version = version
            if not self._is_met or is_other:
                await self._meet(load, is_other)
            elif (answer := self._side_channel.answer_since()) is not None:
                self._note_answer(answer)
            self._take_over(load)
            self._is_met, self._started_s = True, load.started_s
            worker.weights_fingerprint = _fingerprint(worker, models)
        finally:  # also if the questions end half-way: the next ones would find nothing new
            if known != _routes_by(worker):
                self._pool.learned()
        if models != worker.facts or worker.models is None:
            self._pool.learn_models(worker, models)
        announced = worker.server.announced_load
        num_leases = 0 if announced is None else announced.leases
        self._pool.reported(worker, load.as_worker_load(num_leases), load.full_at, num_sent)
        self._expiries.note(worker, load)
        self._problems.note(worker, About.SERVER, "")
        self._include()

    async def _health_and_models(self) -> dict[str, ModelFacts]:
        """Ask whether the engine lives and what it serves, but not in every round: vLLM logs a line per question.

        After a failure it is asked at once: ``/metrics`` is answered also when the engine is dead.
        """
        worker = self._worker
        self._num_rounds += 1
        is_trusted = self._is_met and worker.standing.healthy and worker.standing.breaker.state is BreakerState.CLOSED
        if is_trusted and self._num_rounds % ROUNDS:
            return worker.facts
        await self._server.check_health()
        return await self._server.models()

    def _include(self) -> None:
        """Have the worker used again, if it was away or its breaker is to be tried."""
        worker = self._worker
        is_due = worker.standing.breaker.state is BreakerState.OPEN and not self._pool.probe_wait_s(worker)
        if not worker.standing.healthy or is_due:
            self._pool.recovered(worker)

    def _take_over(self, load: ServerLoad) -> None:
        """Note what the page says besides the load."""
        worker = self._worker
        worker.usage.block_size, worker.usage.num_blocks = load.block_size, load.num_blocks
        worker.server.hands_off = load.has_nixl
        worker.server.num_engines = max(1, load.num_engines)
        if worker.server.max_num_seqs:
            worker.usage.limit = worker.server.max_num_seqs * worker.server.num_engines * queue_factor(worker.role)
            worker.changed()
        self._problems.note(worker, About.WINDOW, WINDOW if worker.server.num_unreadable else "")
        self._problems.note(worker, About.PAGE, CUT_PAGE if load.is_cut else "")
        self._problems.note(worker, About.CONNECTOR, "" if load.has_nixl or worker.role is Role.BOTH else NO_CONNECTOR)

    async def _meet(self, load: ServerLoad, is_other: bool) -> None:
        """Ask which engine it is. If there is no answer, what the same process has answered before still holds."""
        worker = self._worker
        answer = await self._side_channel.ask() if load.has_nixl else Answered(None)
        if is_other or not load.started_s:
            engine_id = "" if answer.facts is None else answer.facts.engine_id
            if is_other or engine_id != worker.engine_id:
                self._pool.engine_started(worker, engine_id)
            worker.compatibility_hash, worker.server.other_format, worker.has_fence = "", False, False
        self._note_answer(answer)

    def _note_answer(self, answer: Answered) -> None:
        worker, facts = self._worker, answer.facts
        if facts is not None:
            if facts.engine_id != worker.engine_id:
                self._pool.engine_started(worker, facts.engine_id)
            worker.compatibility_hash, worker.server.other_format = facts.compatibility_hash, False
            worker.has_fence = facts.has_fence
            if worker.role is not Role.DECODE:
                self._side_channel.meet(facts.engine_id)
        elif answer.other_format:
            worker.compatibility_hash, worker.server.other_format, worker.has_fence = "", True, False
        self._problems.note(worker, About.SIDE_CHANNEL, answer.problem)

    def _away(self, problem: str) -> None:
        """Exclude a server that does not answer, until it does; then it may be another one."""
        self._is_met = False
        self._problems.note(self._worker, About.SERVER, problem)
        self._pool.unreachable(self._worker)

    def _is_other(self, problem: str) -> None:
        """Exclude a server that is not vLLM, of which nothing is known."""
        self._away(problem)
        if self._worker.models is not None:
            self._worker.models = None
            self._pool.learned()


def _routes_by(worker: Worker) -> tuple[object, ...]:
    """What decides, besides its models, which workers it is paired with, and which streams it may continue."""
    pairs_by = worker.version, worker.compatibility_hash, worker.usage.block_size, worker.engine_id
    return *pairs_by, worker.server.other_format, worker.server.hands_off, worker.weights_fingerprint


def _fingerprint(worker: Worker, models: Mapping[str, ModelFacts]) -> str:
    """Workers with the same fingerprint may continue each other's streams. The hash covers model, dtype and version."""
    if worker.compatibility_hash:
        return worker.compatibility_hash
    roots = sorted({facts.root for facts in models.values() if not facts.parent})
    return " ".join(("vllm", worker.version, *roots))

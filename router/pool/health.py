"""Probes workers that could not be reached or whose breaker is open; asks static workers which models they serve.

A healthy worker is not probed: its failures show in requests, its load in the registry. vLLM servers are not probed
here, since they are asked all the time (``router/vllm/servers``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.breaker import BreakerState
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.upstream.internal_calls import WorkerHello

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker, WorkerPool

log = logging.getLogger("baton.router")

#: Seconds to the first probe after a failure; doubled up to the maximum.
FIRST_PROBE_S = 0.1
MAX_PROBE_S = 5.0
PROBE_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 1 << 20
#: Models that one worker may serve, and characters of a name.
MAX_MODELS = 4096
MAX_NAME_CHARS = 256
#: The router renews no leases on such a server, and does not check which workers can read its blocks.
UNGUARDED = (
    "This is a vLLM server, but its address says nothing of that: its KV blocks may be another prompt's by the time a "
    "decode worker reads them. Give it as vllm+{url}."
)


class _Model(msgspec.Struct):
    """One model of a worker's list. Other engines may send other fields and types, so only ``id`` is required."""

    id: str
    root: Any = ""
    parent: Any = ""
    created: Any = 0
    max_model_len: Any = 0
    owned_by: Any = ""

    def facts(self) -> ModelFacts:
        """The facts; fields of an unexpected type count as not reported."""
        return ModelFacts(
            root=self.root if isinstance(self.root, str) else "",
            parent=self.parent if isinstance(self.parent, str) else "",
            created=_whole_number(self.created),
            max_model_len=_whole_number(self.max_model_len),
        )


def _whole_number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


class _Models(msgspec.Struct):
    data: list[_Model]


_models_decoder = msgspec.json.Decoder(_Models)


def read_models(body: bytes) -> dict[str, ModelFacts]:
    """The models of a ``/v1/models`` answer, by name. Raises ValueError."""
    return {model.id: model.facts() for model in _read(body)}


def _read(body: bytes) -> list[_Model]:
    try:
        models = _models_decoder.decode(body).data
    except RecursionError:
        raise ValueError("the list is nested too deep") from None
    if len(models) > MAX_MODELS or any(len(model.id) > MAX_NAME_CHARS for model in models):
        raise ValueError(
            f"there are more than {MAX_MODELS} models, or a name has more than {MAX_NAME_CHARS} characters"
        )
    return models


class HealthProbes:
    """One task per excluded or static worker. It ends when the worker answers, or is no longer known."""

    def __init__(self, upstream: HttpClient, pool: WorkerPool, hello: WorkerHello | None = None) -> None:
        """``hello`` asks registered workers again for their proof: another process may have their port by now."""
        self._upstream = upstream
        self._pool = pool
        self._hello = hello
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        pool.on_unreachable.append(self._start)
        pool.on_opened.append(self._start_later)
        pool.on_static.append(self._spawn)  # which asks for its models

    async def close(self) -> None:
        """Stop probing."""
        await asyncio.gather(*map(end_task, self._tasks.values()))

    def _start(self, worker: Worker, why: str) -> None:
        if worker.kind.is_watched:  # its watcher says what is wrong
            return
        log.warning("worker %s %s", worker.worker_id, why)
        self._spawn(worker, FIRST_PROBE_S)

    def _start_later(self, worker: Worker) -> None:
        log.warning(
            "worker %s is left out: %d requests in a row failed", worker.worker_id, worker.standing.breaker.num_failures
        )
        self._spawn(worker, self._pool.probe_wait_s(worker))

    def _spawn(self, worker: Worker, delay_s: float = 0.0) -> None:
        if worker not in self._tasks and not worker.kind.is_watched:
            self._tasks[worker] = asyncio.get_running_loop().create_task(self._probe(worker, delay_s))

    async def _probe(self, worker: Worker, delay_s: float) -> None:
        try:
            await self._until_it_answers(worker, delay_s)
        finally:  # before the pool is told: from then on the worker may fail again, which needs a new task
            del self._tasks[worker]
        is_left_out = not worker.standing.healthy or worker.standing.breaker.state is BreakerState.OPEN
        if is_left_out and self._pool.knows(worker):
            log.info("worker %s answers again", worker.worker_id)
            self._pool.recovered(worker)

    async def _until_it_answers(self, worker: Worker, delay_s: float) -> None:
        """Or until it is no longer known."""
        while self._pool.knows(worker):
            await asyncio.sleep(delay_s)
            delay_s = min(max(FIRST_PROBE_S, delay_s * 2), MAX_PROBE_S)
            if await self._is_fine(worker):
                return
            self._pool.probe_failed(worker)
            if worker.standing.healthy:
                delay_s = self._pool.probe_wait_s(worker)

    async def _is_fine(self, worker: Worker) -> bool:
        """Whether it answers. A bug in a probe counts as no answer: the worker is asked again."""
        try:
            return await self._answers(worker)
        except Exception:
            log.exception("a probe of worker %s met a bug", worker.worker_id)
            return False

    async def _answers(self, worker: Worker) -> bool:
        path = "/health" if worker.models is not None else "/v1/models"
        try:
            answer = await self._upstream.request("GET", worker.url, path, (), b"", PROBE_TIMEOUT_S)
            try:
                body = await answer.read(_MAX_ANSWER_BYTES, PROBE_TIMEOUT_S)
            finally:
                answer.close()
            if answer.status == 200 and self._hello is not None and worker.engine_id:
                return await self._hello.proves(worker)
        except CallError:
            return False
        if worker.models is None and answer.status == 200:
            self._note_models(worker, body)
        return answer.status == 200

    def _note_models(self, worker: Worker, body: bytes) -> None:
        try:
            models = _read(body)
        except ValueError:  # msgspec's DecodeError and UnicodeDecodeError are ValueErrors
            log.warning("worker %s did not say which models it serves; any is tried there", worker.worker_id)
            return
        self._pool.learn_models(worker, {model.id: model.facts() for model in models})
        if worker.role is not Role.BOTH and any(model.owned_by == "vllm" for model in models):
            worker.problem = UNGUARDED.format(url=worker.url)
            log.warning("worker %s: %s", worker.worker_id, worker.problem)

"""Asks a P that is missing from the registry which leases it still holds, before these count as lost.

A P whose announcement is only late, because its machine is busy or Redis was away for it, still has the blocks. Without
the question its held requests would be prefilled a second time. A process that is gone refuses the connection at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from baton_serve.core.process.task_end import end_task
from baton_serve.core.protocol.hello import WorkerIdentity
from baton_serve.core.protocol.leases_at_p import HELD_PATH, Held, LeaseIds
from baton_serve.router.upstream.internal_calls import InternalCalls

#: Seconds for a call including its connection. Longer than for others: a P whose announcement is late is busy.
CALL_TIMEOUT_S = 5.0
#: Seconds until a P that is still missing is asked again. Nothing else would tell that it is gone.
ASK_EVERY_S = 2.0
#: Leases in one call: so few that an answer which names all of them is one that ``InternalCalls`` reads to its end.
NUM_AT_ONCE = 250

_decoder = msgspec.json.Decoder(Held)


class MissingWorker(WorkerIdentity, Protocol):
    """A worker, which has several engines if it is a vLLM server with data-parallel ranks."""

    @property
    def engine_ids(self) -> Sequence[str]: ...


class MissingEngines:
    """One call at a time to each engine, as long as it is missing, and holds leases of requests."""

    def __init__(
        self,
        calls: InternalCalls,
        is_known: Callable[[str], bool],
        leases_on: Callable[[str], Sequence[str]],
        on_gone: Callable[[str], None],
        on_lost: Callable[[str, Collection[str]], None],
    ) -> None:
        """``is_known`` says whether the registry has an engine, ``leases_on`` which leases requests hold on it.

        ``on_gone`` is called with an engine that cannot be asked, ``on_lost`` with one that was, and leases that it
        does not hold.
        """
        self._internal = calls
        self._is_known = is_known
        self._leases_on = leases_on
        self._on_gone = on_gone
        self._on_lost = on_lost
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MissingEngines {', '.join(self._calls) or 'none'}>"

    def ask(self, worker: MissingWorker) -> None:
        """Ask a worker that is not in the registry any more, in the background. Never raises."""
        engine_id = worker.engine_id
        if self._closed or not engine_id or self._is_known(engine_id):
            return
        if not worker.internal_url:
            for one in worker.engine_ids:
                self._on_gone(one)
        elif self._leases_on(engine_id) and engine_id not in self._calls:
            self._calls[engine_id] = asyncio.get_running_loop().create_task(self._run(worker))

    async def close(self) -> None:
        """End the calls under way."""
        self._closed = True
        for call in tuple(self._calls.values()):
            await end_task(call)

    async def _run(self, worker: WorkerIdentity) -> None:
        engine_id = worker.engine_id
        try:
            while lease_ids := self._leases_on(engine_id):
                held = await self._held(worker, lease_ids)
                if self._is_known(engine_id):  # it is back, whatever came of the question
                    return
                if lost := set(lease_ids) - held:
                    self._on_lost(engine_id, lost)
                if not held:
                    return
                await asyncio.sleep(ASK_EVERY_S)
                if self._is_known(engine_id):
                    return
        finally:  # here, and not when the task's end is told: an engine may go missing again in between
            del self._calls[engine_id]

    async def _held(self, worker: WorkerIdentity, lease_ids: Sequence[str]) -> set[str]:
        held: set[str] = set()
        for start in range(0, len(lease_ids), NUM_AT_ONCE):
            batch = list(lease_ids[start : start + NUM_AT_ONCE])
            body = msgspec.json.encode(LeaseIds(batch))
            answer = await self._internal.ask(worker, HELD_PATH, CALL_TIMEOUT_S, _decoder, body)
            if isinstance(answer, int):
                break
            held.update(set(answer.held).intersection(batch))
        return held

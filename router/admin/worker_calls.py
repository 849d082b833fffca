"""Asks a worker to drain or to resume, on its internal port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.upstream.worker_errors import from_worker

if TYPE_CHECKING:
    from baton_serve.router.pool import Worker
    from baton_serve.router.upstream.internal_calls import InternalCalls

CALL_TIMEOUT_S = 5.0


async def tell_worker(calls: InternalCalls, worker: Worker, what: Literal["drain", "resume"]) -> bool:
    """Returns True if the worker has confirmed; False if it has no internal port that this router knows.

    Raises UpstreamError if the worker cannot be reached or refuses, and WorkerError if it answers 409 because it stops.
    """
    if not worker.internal_url:
        return False
    try:
        status, body = await calls.post(worker, f"/internal/{what}", CALL_TIMEOUT_S)
    except CallError as error:
        raise UpstreamError(f"The worker was not told to {what}: {error}.", code="worker_unreachable") from None
    if status == 200:
        return True
    refusal = from_worker(status, body)
    if status == 409:
        raise refusal
    raise UpstreamError(f"The worker was not told to {what}: {refusal.message}")

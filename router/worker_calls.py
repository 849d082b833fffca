"""What an administrator has a worker told, on its internal port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from protocol.errors import UpstreamError
from router.upstream import LegError
from router.worker_errors import from_worker

if TYPE_CHECKING:
    from router.services import Services
    from router.workers import Worker

CALL_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 1 << 16


async def tell_worker(services: Services, worker: Worker, what: Literal["drain", "resume"]) -> bool:
    """True when the worker has heard; False when it has no internal port that this router knows.

    Raises UpstreamError when it cannot be reached or does not do it, WorkerError when it says 409: it is leaving.
    The token goes only to ports that the registry named.
    """
    if not worker.internal_url:
        return False
    path = f"/internal/{what}"
    try:
        answer = await services.upstream.request(
            "POST", worker.internal_url, path, services.internal_headers, b"", CALL_TIMEOUT_S
        )
        try:
            body = await answer.read(_MAX_ANSWER_BYTES, CALL_TIMEOUT_S)
        finally:
            answer.close()
    except LegError as error:
        raise UpstreamError(f"The worker was not told to {what}: {error}.", code="worker_unreachable") from None
    if answer.status == 200:
        return True
    refusal = from_worker(answer.status, body)
    if answer.status == 409:
        raise refusal
    raise UpstreamError(f"The worker was not told to {what}: {refusal.message}")

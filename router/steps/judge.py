"""After a leg has failed: holds that against its worker, and asks ``request.attempts`` what is next.

When a router ends a request early, it closes the connection and never reads the worker's answer. So an ``aborted`` that
this router reads has another cause. Either this router was paused, and the others took it for dead: then workers end
its requests, and refuse new ones from it for two more seconds. Or the abort of an earlier attempt came late.
No worker has failed in either case, so no attempt counts.
"""

from __future__ import annotations

from typing import Any, Final

from baton_serve.core.net.client.errors import CallError, ConnectError
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.pool import Worker, WorkerPool
from baton_serve.router.request.attempts import Decision, Situation
from baton_serve.router.request.exchange import BlocksLost, Exchange
from baton_serve.router.request.failure_table import Failure, Leg, Next
from baton_serve.router.steps.attempt import LegAttempt
from baton_serve.router.steps.failures import StreamBroken, TryAnother, api_error, cause_of, failure_of
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE, READ_FAILED

#: In order: D could not read P's blocks; the abort was asked for; the worker takes no new requests.
_NOT_ITS_FAULT: Final = frozenset({READ_FAILED, ABORTED, "draining"})
_WITHOUT_ENGINE: Final = frozenset({ENGINE_DEAD, ENGINE_GONE})
#: What the client is told when it is not tried again after its blocks are lost, and no worker has failed before.
_LOST: Final = {
    Failure.LEASE_LOST: "The prefill worker lost the blocks.",
    Failure.NO_READER: "The request failed on every worker that was tried.",
}


class Judge:
    """Judges workers and legs. Sends nothing, and changes only the ``attempts`` of a request."""

    def __init__(self, pool: WorkerPool, metrics: Metrics) -> None:
        self._pool = pool
        self._metrics = metrics

    def failed(self, attempt: LegAttempt[Any], error: CallError | TryAnother) -> Decision:
        """What is next after a worker failed before its first byte. The worker is excluded before its place is free."""
        request, worker, leg = attempt.request, attempt.worker, attempt.leg
        forget_frames(error)
        cause = cause_of(error)
        if isinstance(cause, ConnectError):
            self._pool.unreachable(worker)
        else:
            self.hold_against(worker, cause if isinstance(cause, ApiError) else api_error(error))
        self._metrics.retries["prefill" if leg is Leg.PREFILL else "decode"] += 1
        situation = Situation(
            leg,
            failure_of(cause),
            api_error(error),
            worker,
            source=request.prefill_worker if leg is Leg.DECODE else None,
            engine=worker.key,
            num_tokens=request.progress.num_tokens,
            has_lease=attempt.engine.keeps_blocks(request, cause),
        )
        return request.attempts.after(situation, request.clock())

    def blocks_lost(self, request: Exchange, lost: BlocksLost) -> Decision:
        """What is next after P's blocks were lost to a request that was held, or about to be decoded."""
        forget_frames(lost)
        error = request.attempts.last_error or UpstreamError(_LOST[lost.failure])
        return request.attempts.after(Situation(Leg.HELD, lost.failure, error), request.clock())

    def broken(self, request: Exchange, broken: StreamBroken) -> Decision:
        """What is next after D's stream broke."""
        forget_frames(broken)
        worker = request.decode_worker
        situation = Situation(
            Leg.STREAM,
            broken.failure,
            broken.error,
            worker,
            engine=worker.key if worker else "",
            num_tokens=request.progress.num_tokens,
            can_continue=request.sent_tokens.can_continue(),
        )
        decision = request.attempts.after(situation, request.clock())
        if decision.next is Next.GIVE_UP and situation.can_continue:
            self._metrics.resumed["refused"] += 1
        return decision

    def ended(self, worker: Worker | None, error: ApiError | None) -> None:
        """At the end of D's leg, note that D worked, or hold its error against it. Not called when the client left."""
        if worker is None:
            return
        if error is None:
            self._pool.worked(worker)
        else:
            self.hold_against(worker, error)

    def hold_against(self, worker: Worker, error: ApiError) -> None:
        """Count an error against its worker. A worker whose engine is dead counts as unreachable."""
        if error.code in _WITHOUT_ENGINE:
            self._pool.unreachable(worker, "has no engine any more")
        elif is_the_workers_fault(error):
            self._pool.failed(worker)


def is_the_workers_fault(error: ApiError) -> bool:
    """Whether the error counts against the worker: not if it is busy or drains, or if another worker caused it."""
    return error.status >= 500 and error.code not in _NOT_ITS_FAULT

"""After a failed leg: release the place on its worker, judge the worker, and ask ``attempts`` what is next.

When a client, an administrator or a deadline ends a request, its task is cancelled and the connection closed: the
worker's answer is never read. So an ``aborted`` that is read has another reason. Either the other routers took this
one for dead because it was paused; workers then end its requests, and refuse new ones from it for two more seconds.
Or the abort of an earlier attempt came late. No worker has failed in either case, so no attempt counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from baton_serve.core.net.client.errors import ConnectError
from baton_serve.core.process.tracebacks import forget_frames
from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.request.attempts import Situation
from baton_serve.router.request.failure_table import Failure, Leg, Next
from baton_serve.router.steps.failures import TryAnother, api_error, cause_of, failure_of
from baton_serve.router.upstream.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE, READ_FAILED

if TYPE_CHECKING:
    from baton_serve.core.net.client.errors import CallError
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.attempts import Decision
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.services import Services
    from baton_serve.router.steps.failures import StreamBroken

#: In order: D could not read P's blocks; the abort was asked for; the worker takes no new requests.
_NOT_ITS_FAULT: Final = frozenset({READ_FAILED, ABORTED, "draining"})
_WITHOUT_ENGINE: Final = frozenset({ENGINE_DEAD, ENGINE_GONE})


def after_prefill(services: Services, request: Exchange, worker: Worker, error: CallError | TryAnother) -> Decision:
    """Decide what is next after P failed. Raises the client's error if the request is given up."""
    _leave(services, request, worker, error)
    services.metrics.retries["prefill"] += 1
    return _decide(services, request, _situation(services, request, Leg.PREFILL, worker, error), Next.PREFILL)


def after_decode(
    services: Services, request: Exchange, worker: Worker, error: CallError | TryAnother, *, has_blocks: bool
) -> Decision:
    """Decide what is next after D failed before its first byte. ``has_blocks``: D was to read P's blocks.

    Raises the client's error if the request is given up.
    """
    _leave(services, request, worker, error)
    services.metrics.retries["decode"] += 1
    leg, again = (Leg.DECODE, Next.SAME_BLOCKS) if has_blocks else (Leg.ALONE, Next.OTHER_WORKER)
    return _decide(services, request, _situation(services, request, leg, worker, error), again, Next.PREFILL)


def after_lease_lost(services: Services, request: Exchange) -> None:
    """P's blocks are gone while the request was held. Returns if it is to be prefilled again; else raises ApiError."""
    error = request.attempts.last_error or UpstreamError("The prefill worker lost the blocks.")
    _decide(services, request, Situation(Leg.HELD, Failure.LEASE_LOST, error), Next.PREFILL)


def after_no_reader(services: Services, request: Exchange) -> None:
    """No D is left that can read P's blocks. Returns if the request is to be prefilled again; else raises ApiError."""
    error = request.attempts.last_error or UpstreamError("The request failed on every worker that was tried.")
    _decide(services, request, Situation(Leg.HELD, Failure.NO_READER, error), Next.PREFILL)


def after_stream(services: Services, request: Exchange, broken: StreamBroken) -> None:
    """Decide what is next after D's stream broke. Raises the client's error if no other worker is to continue it."""
    forget_frames(broken)
    can_continue = request.sent_tokens.can_continue()
    situation = Situation(
        Leg.STREAM,
        broken.failure,
        broken.error,
        request.decode_worker,
        engine=request.decode_worker.key if request.decode_worker else "",
        num_tokens=request.num_tokens,
        can_continue=can_continue,
    )
    _decide(services, request, situation, Next.MIGRATE)


def continued(services: Services, request: Exchange) -> None:
    """Note that new tokens have come: if the stream had broken, it is continued now."""
    if request.attempts.continued():
        services.metrics.resumed["resumed"] += 1


def _situation(
    services: Services, request: Exchange, leg: Leg, worker: Worker, error: CallError | TryAnother
) -> Situation:
    return Situation(
        leg,
        failure_of(cause_of(error)),
        api_error(error),
        worker,
        source=request.prefill_worker if leg is Leg.DECODE else None,
        engine=worker.key,
        num_tokens=request.num_tokens,
        has_lease=services.engines.of(worker).keeps_blocks(request, cause_of(error)),
    )


def _decide(services: Services, request: Exchange, situation: Situation, *possible: Next) -> Decision:
    """Ask what is next; raises the error if it is GIVE_UP. ``possible``: the other outcomes that the caller handles."""
    decision = request.attempts.after(situation, request.clock())
    if decision.is_over_budget:
        services.metrics.num_over_budget += 1
    if decision.next is Next.GIVE_UP:
        if situation.leg is Leg.STREAM and situation.can_continue:
            services.metrics.resumed["refused"] += 1
        assert decision.error is not None
        raise decision.error
    assert decision.next in possible, f"{decision.next} after {situation.leg}"
    return decision


def _leave(services: Services, request: Exchange, worker: Worker, error: CallError | TryAnother) -> None:
    """Release the place on a failed worker. An unreachable worker is excluded before its place is free."""
    forget_frames(error)
    cause = cause_of(error)
    if isinstance(cause, ConnectError):
        services.pool.unreachable(worker)
    else:
        hold_against(services, worker, cause if isinstance(cause, ApiError) else api_error(error))
    request.vacate()


def hold_against(services: Services, worker: Worker, error: ApiError) -> None:
    """Count an error against its worker. A worker whose engine is dead counts as unreachable."""
    if error.code in _WITHOUT_ENGINE:
        services.pool.unreachable(worker, "has no engine any more")
    elif is_the_workers_fault(error):
        services.pool.failed(worker)


def is_the_workers_fault(error: ApiError) -> bool:
    """Whether the error counts against the worker: not if it is busy or drains, or if another worker caused it."""
    return error.status >= 500 and error.code not in _NOT_ITS_FAULT

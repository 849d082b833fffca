"""A leg failed: the place on its worker is given back, the worker judged, and ``attempts`` asked what is next.

Who ends a request here, a client, an administrator or a deadline, cancels its task and so closes the connection: what
the worker says then is never read. An ``aborted`` that is read was for another reason. The other routers had given this
one up, since it stood still; then workers end what it has there, and take nothing of it for two more seconds. Or an
abort of an earlier attempt came late. Either way nobody failed, so no attempt counts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from core.net.client.errors import ConnectError
from core.protocol.errors import ApiError, UpstreamError
from router.placement.ports import key_of
from router.request.attempts import Situation
from router.request.failure_table import Failure, Leg, Next
from router.steps.failures import TryAnother, api_error, cause_of, failure_of
from router.upstream.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE, READ_FAILED

if TYPE_CHECKING:
    from core.net.client.errors import CallError
    from router.pool import Worker
    from router.request.attempts import Decision
    from router.request.exchange import Exchange
    from router.services import Services
    from router.steps.failures import StreamBroken

#: The first D tells of P's blocks; the second somebody wanted; the third a worker says when it takes nothing new.
_NOT_ITS_FAULT = frozenset({READ_FAILED, ABORTED, "draining"})
_WITHOUT_ENGINE = frozenset({ENGINE_DEAD, ENGINE_GONE})


def after_prefill(services: Services, request: Exchange, worker: Worker, error: CallError | TryAnother) -> Decision:
    """P failed. Raises what the client is told if that was enough."""
    _leave(services, request, worker, error)
    services.metrics.retries["prefill"] += 1
    return _decide(services, request, _situation(request, Leg.PREFILL, worker, error), Next.PREFILL)


def after_decode(
    services: Services, request: Exchange, worker: Worker, error: CallError | TryAnother, *, has_blocks: bool
) -> Decision:
    """D failed before its first byte. ``has_blocks``: it was to read P's. Raises what the client is told if that was
    enough.
    """
    _leave(services, request, worker, error)
    services.metrics.retries["decode"] += 1
    leg, again = (Leg.DECODE, Next.SAME_BLOCKS) if has_blocks else (Leg.ALONE, Next.OTHER_WORKER)
    return _decide(services, request, _situation(request, leg, worker, error), again, Next.PREFILL)


def after_lease_lost(services: Services, request: Exchange) -> None:
    """P's blocks are gone while the request was held: it is prefilled again. Raises what the client is told if not."""
    error = request.attempts.last_error or UpstreamError("The prefill worker lost the blocks.")
    _decide(services, request, Situation(Leg.HELD, Failure.LEASE_LOST, error), Next.PREFILL)


def after_no_reader(services: Services, request: Exchange) -> None:
    """No worker is left that could read P's blocks: it is prefilled again. Raises what the client is told if not."""
    error = request.attempts.last_error or UpstreamError("The request failed on every worker that was tried.")
    _decide(services, request, Situation(Leg.HELD, Failure.NO_READER, error), Next.PREFILL)


def after_stream(services: Services, request: Exchange, broken: StreamBroken) -> None:
    """D's stream broke off. Raises what the client is told if no other worker shall go on."""
    can_continue = request.sent_tokens.can_continue()
    situation = Situation(
        Leg.STREAM,
        broken.failure,
        broken.error,
        request.decode_worker,
        engine=key_of(request.decode_worker) if request.decode_worker else "",
        num_tokens=request.num_tokens,
        can_continue=can_continue,
    )
    _decide(services, request, situation, Next.MIGRATE)


def continued(services: Services, request: Exchange) -> None:
    """There are new tokens: if the stream had broken off, another worker goes on with it now."""
    if request.attempts.continued():
        services.metrics.resumed["resumed"] += 1


def _situation(request: Exchange, leg: Leg, worker: Worker, error: CallError | TryAnother) -> Situation:
    return Situation(
        leg,
        failure_of(cause_of(error)),
        api_error(error),
        worker,
        source=request.prefill_worker if leg is Leg.DECODE else None,
        engine=key_of(worker),
        num_tokens=request.num_tokens,
        has_lease=_has_lease(request, error),
    )


def _has_lease(request: Exchange, error: CallError | TryAnother) -> bool:
    """Another D can read what P holds: under a lease of ours, or because the failed one never asked.

    An engine without our leases gives the blocks up as soon as a D has failed with them.
    """
    if request.lease_end is not None:
        return False
    return bool(request.lease_id) or (bool(request.engine_id) and isinstance(error, ConnectError))


def _decide(services: Services, request: Exchange, situation: Situation, *possible: Next) -> Decision:
    """Raises the error of GIVE_UP. ``possible``: what else the caller does."""
    decision = request.attempts.after(situation, asyncio.get_running_loop().time())
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
    """Give back the place on a worker that failed. One that is gone is left out before its place is free."""
    cause = cause_of(error)
    if isinstance(cause, ConnectError):
        services.pool.unreachable(worker)
    else:
        hold_against(services, worker, cause if isinstance(cause, ApiError) else api_error(error))
    request.vacate()


def hold_against(services: Services, worker: Worker, error: ApiError) -> None:
    """Note what a worker said, or did. One whose engine is dead is as gone as one that cannot be reached."""
    if error.code in _WITHOUT_ENGINE:
        services.pool.unreachable(worker, "has no engine any more")
    elif is_the_workers_fault(error):
        services.pool.failed(worker)


def is_the_workers_fault(error: ApiError) -> bool:
    """It counts against the worker that told it. Being busy or about to leave does not, nor what another one broke."""
    return error.status >= 500 and error.code not in _NOT_ITS_FAULT

"""The one place where every request ends, whatever the outcome.

``settle`` releases whatever the request still holds: its place in a queue, its place on a worker (it closes the
connection, so that P or D stops), and P's blocks, also those in an answer that the router has not read yet. It
awaits nothing, so it cannot be cancelled half-way; calls that take time run in tasks of other parts. Only then metrics,
lists, log and traces are told. One of them that raises costs a log line.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from baton_serve.core.process.failpoints import hit
from baton_serve.router.request.choices.whole import WholeRequest
from baton_serve.router.request.snapshot import facts_at_end
from baton_serve.router.request.states import Event, State
from baton_serve.router.steps.end_log import log_end

if TYPE_CHECKING:
    from baton_serve.core.protocol.errors import ApiError
    from baton_serve.router.request.active import ActiveRequests
    from baton_serve.router.request.ended import EndedRequests
    from baton_serve.router.request.exchange import Exchange
    from baton_serve.router.request.facts import RequestFacts
    from baton_serve.router.telemetry.metrics.metrics import Metrics


log = logging.getLogger("baton.router")


def release(request: Exchange, error: ApiError | None) -> None:
    """End one of several choices. ``error``: its own; None: it is done, or it ends because another one does."""
    _end(request, Event.ABORTED if error is None else Event.FAILED)
    if request.choice is not None:
        request.choice.leave()
    request.vacate()


def _end(request: Exchange, event: Event) -> None:
    """Note the end of a request that is not over, and give up its blocks."""
    if not request.progress.over:
        request.on(event)
    request.held.drop_lease()


class Exit:
    """Ends requests, and then tells who looks on."""

    def __init__(self, active: ActiveRequests, metrics: Metrics, ended: EndedRequests, *, logs_all: bool) -> None:
        """``logs_all``: also log requests that ended well, or with a mistake of their clients."""
        self._active = active
        self._metrics = metrics
        self._ended = ended
        self._logs_all = logs_all
        self._observers = (self._count, self._list, self._log, self._trace)

    def settle(self, request: Exchange | WholeRequest, error: ApiError | None) -> None:
        """End the request. ``error``: why the client has not got everything; None if it has. Later calls do nothing."""
        if self._active.get(request.request_id) is not request:
            return
        hit("router.exit")
        before = request.state
        is_aborted = error is not None and error is request.stop_error
        if isinstance(request, WholeRequest):
            request.end_state = request.end_state or (State.ABORTED if is_aborted else State.FAILED)
            for one in request.exchanges:  # those that never began; the others are released already
                release(one, None)
        else:
            _end(request, Event.ABORTED if is_aborted else Event.FAILED)
        self._active.remove(request)
        if not isinstance(request, WholeRequest):
            request.vacate()
        now_s = request.clock()
        try:
            facts = facts_at_end(request, before, error, now_s)
        except Exception:
            log.exception("the end of request %s was noted by nobody", request.request_id)
            return
        for tell in self._observers:  # only now: none of them can keep what the request held
            try:
                tell(request, facts, now_s)
            except Exception:
                log.exception("the end of request %s was not noted by all", request.request_id)

    def _count(self, _request: Exchange | WholeRequest, facts: RequestFacts, _now_s: float) -> None:
        self._metrics.ended(facts)

    def _list(self, _request: Exchange | WholeRequest, facts: RequestFacts, now_s: float) -> None:
        self._ended.add(now_s, facts, time.time())

    def _log(self, _request: Exchange | WholeRequest, facts: RequestFacts, _now_s: float) -> None:
        # Not for what its client sent: else clients could make the log grow.
        is_warning = facts.state is State.FAILED and (facts.error is None or facts.error.status >= 500)
        if is_warning or self._logs_all:
            log_end(facts, is_warning=is_warning)

    def _trace(self, request: Exchange | WholeRequest, facts: RequestFacts, _now_s: float) -> None:
        if request.trace is not None:
            request.trace.end(facts)

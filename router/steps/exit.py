"""The one place where every request ends, whatever the outcome.

``settle`` releases whatever the request still holds: its place in a queue, its place on a worker (it closes the
connection, so that P or D stops), and P's blocks, also if the router has not read P's answer yet. ``settle``
awaits nothing, so it cannot be cancelled half-way; calls that take time run in tasks of other parts. Only then metrics,
lists, log and traces are told. If one of them raises, that is logged.
"""

from __future__ import annotations

import logging
import time

from baton_serve.core.process.failpoints import hit
from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.request.ended import EndedRequests
from baton_serve.router.request.exchange import LiveRequest
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import State
from baton_serve.router.steps.end_log import log_end
from baton_serve.router.telemetry.metrics.metrics import Metrics

log = logging.getLogger("baton.router")


class Exit:
    """Ends requests, and then tells metrics, lists, log and traces."""

    def __init__(self, active: ActiveRequests, metrics: Metrics, ended: EndedRequests, *, logs_all: bool) -> None:
        """``logs_all``: also log requests that ended well, or with a mistake of their clients."""
        self._active = active
        self._metrics = metrics
        self._ended = ended
        self._logs_all = logs_all
        self._observers = (self._count, self._list, self._log, self._trace)

    def settle(self, request: LiveRequest, error: ApiError | None) -> None:
        """End the request. ``error``: why the client has not got everything; None if it has. Later calls do nothing."""
        if self._active.get(request.request_id) is not request:
            return
        hit("router.exit")
        before = request.state
        is_aborted = error is not None and error is request.stop_error
        request.end(is_aborted=is_aborted)
        self._active.remove(request)
        request.vacate()
        now_s = request.clock()
        try:
            facts = request.facts_at_end(before, error, now_s)
        except Exception:
            log.exception("no observer was told of the end of request %s", request.request_id)
            return
        for tell in self._observers:  # only now: none of them can keep what the request held
            try:
                tell(request, facts, now_s)
            except Exception:
                log.exception("an observer of the end of request %s met a bug", request.request_id)

    def _count(self, _request: LiveRequest, facts: RequestFacts, _now_s: float) -> None:
        self._metrics.ended(facts)

    def _list(self, _request: LiveRequest, facts: RequestFacts, now_s: float) -> None:
        self._ended.add(now_s, facts, time.time())

    def _log(self, _request: LiveRequest, facts: RequestFacts, _now_s: float) -> None:
        # Not for what its client sent: else clients could make the log grow.
        is_warning = facts.state is State.FAILED and (facts.error is None or facts.error.status >= 500)
        if is_warning or self._logs_all:
            log_end(facts, is_warning=is_warning)

    def _trace(self, request: LiveRequest, facts: RequestFacts, _now_s: float) -> None:
        if request.trace is not None:
            request.trace.end(facts)

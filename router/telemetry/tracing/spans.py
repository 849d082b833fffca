"""The spans of a request, made from the times of its phases when the request is over.

Until then about five times are noted per request. The ids of its spans are drawn in advance, because workers are sent
them: a worker's spans are children of the phase in which the worker was asked.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from baton_serve.core.protocol.errors import ApiError
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.request.states import RETRIES, Event, State

#: Events that begin a phase in which a worker has the request; in other phases only the router has it.
_ASKING = frozenset({Event.PREFILL_SENT, Event.DECODE_SENT, Event.DECODE_ALONE})
_AGAIN = RETRIES | {Event.STREAM_BROKE}


class PlannedIds(RandomIdGenerator):
    """Random ids, except that the next span gets ``planned`` if it is not 0. Only the loop's thread makes spans."""

    planned = 0

    def generate_span_id(self) -> int:
        """The planned id, once; else a random one."""
        planned, self.planned = self.planned, 0
        return planned or super().generate_span_id()


class _Phase(NamedTuple):
    state: State
    since_s: float
    until_s: float
    span_id: int
    worker_id: str
    asks: bool
    #: Why a leg was tried again after this phase, or the stream migrated; empty: neither.
    retry_reason: str
    broke_off: bool


class RequestTrace:
    """The phases of one request, noted as they end. Times are seconds of the loop's clock."""

    def __init__(
        self, tracer: Tracer, ids: PlannedIds, root: Span, offset_ns: int, now_s: float, index: int | None = None
    ) -> None:
        """``index``: of the choice whose phases these are; None: they are the whole request's."""
        self._index = index
        self._choices: list[RequestTrace] = []
        self._tracer = tracer
        self._ids = ids
        self._root = root
        self._offset_ns = offset_ns
        self._since_s = now_s
        self._asks = False
        self._span_id = ids.generate_span_id()
        self._phases: list[_Phase] = []

    @property
    def trace_id(self) -> str:
        """The trace id, in the form that logs show."""
        return f"{self._root.get_span_context().trace_id:032x}"

    def headers(self) -> tuple[tuple[str, str], ...]:
        """W3C Trace Context headers for a worker that is asked now; the parent is the span of the present phase."""
        context = self._root.get_span_context()
        parent = ("traceparent", f"00-{context.trace_id:032x}-{self._span_id:016x}-{int(context.trace_flags) & 1:02x}")
        state = context.trace_state.to_header()
        return (parent, ("tracestate", state)) if state else (parent,)

    def left(self, state: State, event: Event, now_s: float, worker_id: str, error: ApiError | None) -> None:
        """See ``router.request.exchange.Trace``."""
        self._phases.append(
            _Phase(
                state,
                self._since_s,
                now_s,
                self._span_id,
                worker_id,
                self._asks,
                # No worker has a held request: if a retry follows, the request has lost P's blocks.
                "" if event not in _AGAIN else "lease_lost" if state is State.HELD else _code(error),
                event is Event.STREAM_BROKE,
            )
        )
        self._since_s = now_s
        self._asks = event in _ASKING
        self._span_id = self._ids.generate_span_id()

    def of_choice(self, index: int) -> RequestTrace:
        """See ``router.request.exchange.Trace``."""
        choice = RequestTrace(self._tracer, self._ids, self._root, self._offset_ns, self._since_s, index)
        self._choices.append(choice)
        return choice

    def end(self, facts: RequestFacts) -> None:
        """Make the spans of a request that is over."""
        root, error = self._root, facts.error
        if root.is_recording():
            # By OpenTelemetry's conventions for HTTP, the client's actions and errors are no errors of a server's span.
            broken = facts.state is State.FAILED and facts.answer_begun
            failure = error if error is not None and (error.status >= 500 or broken) else None
            for one in (self, *self._choices):
                one._make_all(failure)
            root.set_attributes(_outcome(facts))
            if failure is not None:
                root.set_attribute("error.type", _code(failure))
                root.set_status(StatusCode.ERROR, failure.message)
        root.end(self._ns(max(one._since_s for one in (self, *self._choices))))

    def _make_all(self, failure: ApiError | None) -> None:
        for phase in self._phases:
            self._make(phase, failure if phase is self._phases[-1] else None)

    def _make(self, phase: _Phase, failure: ApiError | None) -> None:
        reason = phase.retry_reason or _code(failure)
        attributes: dict[str, AttributeValue] = {}
        if phase.worker_id:
            attributes["baton.worker.id"] = phase.worker_id
        if self._index is not None:
            attributes["baton.choice"] = self._index
        if reason:
            attributes["error.type"] = reason
        if phase.retry_reason:
            about = {"baton.phase": str(phase.state), **attributes}
            name = "baton.resume" if phase.broke_off else "baton.retry"
            self._root.add_event(name, about, timestamp=self._ns(phase.until_s))
        self._ids.planned = phase.span_id
        span = self._tracer.start_span(
            str(phase.state),
            context=set_span_in_context(self._root),
            kind=SpanKind.CLIENT if phase.asks else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=self._ns(phase.since_s),
        )
        if reason:
            span.set_status(StatusCode.ERROR, None if failure is None else failure.message)
        span.end(self._ns(phase.until_s))

    def _ns(self, loop_s: float) -> int:
        return self._offset_ns + round(loop_s * 1e9)


def _outcome(facts: RequestFacts) -> dict[str, AttributeValue]:
    error = facts.error
    found: dict[str, AttributeValue | None] = {
        "http.response.status_code": 200 if error is None or facts.answer_begun else error.status,
        "baton.outcome": str(facts.state),
        "baton.reason": _code(error) or None,
        "baton.retries": facts.num_retries,
        "baton.resumed": facts.num_migrations,
        "baton.prefill.worker.id": facts.prefill_worker,
        "baton.decode.worker.id": facts.decode_worker,
        "baton.tokens": facts.num_tokens if facts.stream else None,
        "baton.ttft_ms": None if facts.ttft_s is None else round(facts.ttft_s * 1e3, 3),
    }
    return {name: value for name, value in found.items() if value is not None}


def _code(error: ApiError | None) -> str:
    return "" if error is None else error.code or error.type

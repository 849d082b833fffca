"""The router's use of OpenTelemetry's SDK: where spans go, how a trace begins, and the last export."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from baton_serve.core.protocol.ids import short
from baton_serve.router.request.facts import RequestFacts
from baton_serve.router.telemetry.tracing.spans import PlannedIds, RequestTrace

#: Seconds for the last export; spans not exported by then are lost.
FLUSH_S = 3.0

_PROPAGATOR = TraceContextTextMapPropagator()


def batches(exporter: str) -> SpanProcessor:
    """A processor that exports in its own thread, configured by the environment. Raises ImportError, ValueError."""
    if exporter == "console":
        return BatchSpanProcessor(ConsoleSpanExporter())
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return BatchSpanProcessor(OTLPSpanExporter())


class Tracing:
    """Begins traces. Sampler, resource and limits come from the environment."""

    def __init__(self, processors: Iterable[SpanProcessor], environ: Mapping[str, str]) -> None:
        named = environ.get("OTEL_SERVICE_NAME") or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._ids = PlannedIds()
        self._provider = TracerProvider(
            resource=Resource.create({} if named else {SERVICE_NAME: "baton-router"}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("baton.router")
        # Started now, since no thread can be started while the interpreter ends.
        self._told = threading.Event()
        self._closer = threading.Thread(target=self._close_when_told, name="tracing-close", daemon=True)
        self._closer.start()

    def begin(self, facts: RequestFacts, headers: Mapping[bytes, bytes], came_s: float, scheme: str) -> RequestTrace:
        """Begin the trace of a request that arrived at ``came_s`` (loop's clock), under the client's span, if any."""
        names = (b"traceparent", b"tracestate")
        carrier = {name.decode(): headers[name].decode("latin-1") for name in names if name in headers}
        offset_ns = time.time_ns() - round(asyncio.get_running_loop().time() * 1e9)
        root = self._tracer.start_span(
            f"POST {facts.endpoint}",
            context=_PROPAGATOR.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_about(facts, scheme),
            start_time=offset_ns + round(came_s * 1e9),
        )
        return RequestTrace(self._tracer, self._ids, root, offset_ns, facts.started_s)

    def close(self) -> None:
        """Export what is left, for at most ``FLUSH_S``."""
        self._told.set()
        self._closer.join(FLUSH_S)

    def _close_when_told(self) -> None:
        self._told.wait()
        self._provider.shutdown()


def _about(facts: RequestFacts, scheme: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": "POST",
        "http.route": facts.endpoint,
        "url.path": facts.endpoint,
        "url.scheme": scheme,
        "gen_ai.operation.name": "chat" if facts.chat else "text_completion",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": facts.model,
        "baton.request.id": facts.id,
        "baton.request.short_id": short(facts.id),
        "baton.stream": facts.stream,
    }
    if facts.client_id:
        attributes["baton.client.request.id"] = facts.client_id
    if facts.max_new_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = facts.max_new_tokens
    return attributes

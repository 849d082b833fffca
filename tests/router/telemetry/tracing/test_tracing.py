"""One trace per request: its spans, whose child it is, and what the workers are told."""

from __future__ import annotations

import http.server
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from baton_serve.router.telemetry.tracing.setup import exporters, set_up
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.process import RouterProcess
from tests.kits.router.stub_workers import Hang, Raw, Refuse, Reset, StreamThen, word

TRACE_ID, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CLIENTS_SPAN}-01"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


async def tree(cluster: Cluster, exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The root and its children, in order, of the one request there was."""
    await eventually(lambda: any(span.kind is SpanKind.SERVER for span in exporter.get_finished_spans()))
    spans = exporter.get_finished_spans()
    (root,) = [span for span in spans if span.kind is SpanKind.SERVER]
    children = [span for span in spans if span is not root]
    assert root.context is not None
    for span in children:
        assert span.context is not None
        assert span.parent is not None
        assert (span.context.trace_id, span.parent.span_id) == (root.context.trace_id, root.context.span_id)
    return root, children


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_request_has_a_span_for_each_phase_and_they_follow_each_other(
    cluster: Cluster, exporter: InMemorySpanExporter
) -> None:
    await cluster.fleet("prefill", "decode")
    response = await cluster.post(chat(stream=True))
    root, phases = await tree(cluster, exporter)
    assert root.name == "POST /v1/chat/completions"
    assert root.parent is None
    assert root.resource.attributes["service.name"] == "baton-router"
    found = attributes(root)
    assert found["baton.request.id"] == response.headers["x-request-id"]
    assert found["baton.request.short_id"] == response.headers["x-request-id"][:8]
    assert found["http.response.status_code"] == 200
    assert (found["gen_ai.operation.name"], found["gen_ai.request.model"]) == ("chat", "m")
    assert found["gen_ai.request.max_tokens"] == 4
    assert (found["baton.prefill.worker.id"], found["baton.decode.worker.id"]) == ("p0", "d1")
    assert (found["baton.outcome"], found["baton.retries"]) == ("done", 0)
    assert "error.type" not in found
    assert [span.name for span in phases] == ["queued", "prefilling", "held", "reading", "decoding"]
    assert [attributes(span).get("baton.worker.id") for span in phases] == [None, "p0", None, "d1", "d1"]
    assert [span.end_time for span in phases[:-1]] == [span.start_time for span in phases[1:]]
    assert phases[-1].end_time == root.end_time
    assert root.start_time is not None
    assert phases[0].start_time is not None
    assert root.start_time <= phases[0].start_time


async def test_the_router_continues_the_clients_trace_and_the_workers_continue_it(
    cluster: Cluster, exporter: InMemorySpanExporter
) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    response = await cluster.client.post(
        "/v1/chat/completions", json=chat(), headers={"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    )
    assert response.status_code == 200
    root, phases = await tree(cluster, exporter)
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == CLIENTS_SPAN
    ids = {span.name: span.context.span_id for span in phases if span.context is not None}
    for worker, phase in ((p, "prefilling"), (d, "reading")):
        assert worker.headers[0]["traceparent"] == f"00-{TRACE_ID}-{ids[phase]:016x}-01"
        assert worker.headers[0]["tracestate"] == "vendor=1"


async def test_a_request_that_the_client_does_not_want_recorded_is_not(
    cluster: Cluster, exporter: InMemorySpanExporter
) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    await cluster.client.post(
        "/v1/chat/completions", json=chat(), headers={"traceparent": TRACEPARENT.removesuffix("1") + "0"}
    )
    await eventually(lambda: not cluster.active)
    assert exporter.get_finished_spans() == ()
    assert p.headers[0]["traceparent"].startswith(f"00-{TRACE_ID}-")
    assert p.headers[0]["traceparent"].endswith("-00")


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff" * 55])
async def test_a_malformed_traceparent_begins_a_new_trace(
    cluster: Cluster, exporter: InMemorySpanExporter, traceparent: str
) -> None:
    await cluster.fleet("prefill", "decode")
    headers = {"traceparent": traceparent.encode("latin-1")}
    response = await cluster.client.post("/v1/chat/completions", json=chat(), headers=headers)
    assert response.status_code == 200
    root, _ = await tree(cluster, exporter)
    assert root.parent is None


async def test_a_stream_that_another_d_goes_on_with_has_each_phase_twice(
    cluster: Cluster, exporter: InMemorySpanExporter
) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    broken = StreamThen(1, "die")
    d.script.append(broken)
    await cluster.streamed(chat(stream=True), broken, after=word(1))
    root, phases = await tree(cluster, exporter)
    assert [span.name for span in phases] == ["queued", "prefilling", "held", "reading", "decoding"] * 2
    assert [event.name for event in root.events] == ["baton.resume"]
    assert root.attributes is not None and root.attributes["baton.resumed"] == 1


async def test_retries_are_events_and_spans_of_their_own(cluster: Cluster, exporter: InMemorySpanExporter) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    d.script.append(Reset())
    p.script.append(Refuse(502, {}))
    response = await cluster.post(chat(stream=True))
    assert response.status_code == 200
    root, phases = await tree(cluster, exporter)
    names = [span.name for span in phases]
    assert names == [*["queued", "prefilling"] * 2, *["held", "reading"] * 2, "decoding"]
    assert [span.status.status_code is StatusCode.ERROR for span in phases] == [
        span is phases[1] or span is phases[5] for span in phases
    ]
    assert root.status.status_code is StatusCode.UNSET
    assert [event.name for event in root.events] == ["baton.retry"] * 2
    about = [dict(event.attributes or {}) for event in root.events]
    assert [event["baton.phase"] for event in about] == ["prefilling", "reading"]
    assert [event["baton.worker.id"] for event in about] == ["p0", "d1"]
    assert all(event["error.type"] == "upstream_error" for event in about)
    assert attributes(root)["baton.retries"] == 2


async def test_a_stream_that_breaks_is_an_error(cluster: Cluster, exporter: InMemorySpanExporter) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Raw([EVENT], "die"))
    await cluster.post(chat(stream=True))
    root, phases = await tree(cluster, exporter)
    for span in (root, phases[-1]):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "upstream_error"
    assert attributes(root)["http.response.status_code"] == 200
    assert attributes(root)["baton.outcome"] == "failed"


async def test_a_clients_own_mistake_is_no_error_of_the_server(
    cluster: Cluster, exporter: InMemorySpanExporter
) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}))
    assert (await cluster.post(chat())).status_code == 400
    root, phases = await tree(cluster, exporter)
    assert [span.name for span in phases] == ["queued", "prefilling"]
    assert root.status.status_code is StatusCode.UNSET
    assert attributes(root)["http.response.status_code"] == 400
    assert attributes(root)["baton.reason"] == "context_length_exceeded"


async def test_a_client_that_leaves_is_no_error_in_the_trace(cluster: Cluster, exporter: InMemorySpanExporter) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Hang())
    writer = await cluster.open(chat(stream=True))
    await cluster.until_state("prefilling")
    writer.close()
    root, phases = await tree(cluster, exporter)
    assert [span.name for span in phases] == ["queued", "prefilling"]
    assert (attributes(root)["baton.outcome"], attributes(root)["baton.reason"]) == ("aborted", "client_gone")
    assert root.status.status_code is StatusCode.UNSET


async def test_without_tracing_workers_are_told_nothing(cluster: Cluster) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    await cluster.client.post("/v1/chat/completions", json=chat(), headers={"traceparent": TRACEPARENT})
    assert "traceparent" not in p.headers[0]


def test_a_router_without_tracing_imports_nothing_that_traces() -> None:
    """The Redis client imports the SDK's metrics where there is an SDK."""
    program = (
        "import baton_serve.router.main, baton_serve.router.apps.public, sys\n"
        "from baton_serve.router.telemetry.tracing.setup import set_up\n"
        "assert set_up({}) is None\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    tracers = (
        "opentelemetry.sdk.trace",
        "opentelemetry.exporter",
        "baton_serve.router.telemetry.tracing.provider",
        "baton_serve.router.telemetry.tracing.spans",
    )
    assert [name for name in done.stdout.split() if name.startswith(tracers)] == []


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp", "console"]),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, []),
    ],
)
def test_the_exporters_are_those_that_the_environment_asks_for(
    environ: dict[str, str], names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert exporters(environ) == names
    assert caplog.records == []


@pytest.mark.parametrize(
    "environ",
    [{"OTEL_TRACES_EXPORTER": "zipkin"}, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}],
)
def test_an_exporter_that_cannot_be_had_is_one_warning(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert set_up(environ) is None
    assert len(caplog.records) == 1


def test_a_missing_extra_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delitem(sys.modules, "baton_serve.router.telemetry.tracing.provider")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with caplog.at_level(logging.WARNING):
        assert set_up({"OTEL_TRACES_EXPORTER": "otlp"}) is None
    (record,) = caplog.records
    assert "baton-serve[otel]" in record.getMessage()


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What a collector is sent, which the environment says spans go to."""
    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        yield bodies
        collector.shutdown()
        serving.join()


async def test_spans_reach_a_collector_before_the_router_ends(cluster: Cluster, received: list[bytes]) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    router = await RouterProcess().start(redis_url="", prefill=[p.url], decode=[d.url])
    async with httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client:
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
    code, stderr = await router.stop()
    assert code == 0
    assert "requests are traced to otlp" in stderr
    (sent,) = [ExportTraceServiceRequest.FromString(body) for body in received]
    names = [span.name for scope in sent.resource_spans[0].scope_spans for span in scope.spans]
    assert names == ["queued", "prefilling", "held", "reading", "decoding", "POST /v1/chat/completions"]


async def test_each_choice_has_spans_of_its_own(cluster: Cluster, exporter: InMemorySpanExporter) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    assert (await cluster.post(chat(n=2))).status_code == 200
    root, phases = await tree(cluster, exporter)
    names = ["queued", "prefilling", "held", "reading"]
    for index in (0, 1):
        own = [span for span in phases if attributes(span)["baton.choice"] == index]
        assert [span.name for span in own][: len(names)] == names
        reading = own[len(names) - 1]
        assert reading.context is not None and root.end_time is not None and own[-1].end_time is not None
        assert own[-1].end_time <= root.end_time
        parents = [headers["traceparent"].split("-")[2] for headers in d.headers]
        assert f"{reading.context.span_id:016x}" in parents

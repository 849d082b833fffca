"""A client's own id of its request comes back to it, and is in the log, the trace and the listing; it is never ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton_serve.core.process.log import FACTS
from baton_serve.router.request.reply import client_id
from tests.kits.router.cluster import Cluster, chat, eventually


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, ""),
        ({b"x-client-request-id": b"a b"}, "a b"),
        ({b"x-request-id": b"a"}, "a"),
        ({b"x-client-request-id": b"a", b"x-request-id": b"b"}, "a"),
        ({b"x-client-request-id": b"", b"x-request-id": b"b"}, "b"),
        ({b"x-request-id": b"x" * 512}, "x" * 512),
        ({b"x-request-id": b"x" * 513}, ""),
        ({b"x-request-id": b"a\tb"}, ""),
        ({b"x-request-id": b"a\n"}, ""),
        ({b"x-request-id": b"\xe9"}, ""),
    ],
)
def test_a_clients_id_is_taken_only_if_it_is_short_and_printable(headers: Mapping[bytes, bytes], found: str) -> None:
    assert client_id(headers) == found


@pytest.mark.settings(log_requests=True, api_keys=["k"])
class TestLogged:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("header", ["x-client-request-id", "x-request-id"])
    async def test_a_clients_id_is_in_the_answer_the_listing_the_log_and_the_trace(
        self,
        cluster: Cluster,
        caplog: pytest.LogCaptureFixture,
        exporter: InMemorySpanExporter,
        header: str,
        stream: bool,
    ) -> None:
        p, d = await cluster.fleet("prefill", "decode")
        hang = d.hangs()
        mine = {header: "order-17", "authorization": "Bearer k"}
        with caplog.at_level(logging.INFO, "baton.router"):
            asked = asyncio.create_task(cluster.post(chat(stream=stream), headers=mine))
            await eventually(lambda: bool(d.bodies))
            (listed,) = (await cluster.client.get("/admin/requests")).json()["requests"]
            hang.release.set()
            answer = await asked
            await eventually(lambda: not cluster.active)
        assert answer.headers["x-client-request-id"] == listed["client_id"] == "order-17"
        ours = answer.headers["x-request-id"]
        assert {headers["x-request-id"] for worker in (p, d) for headers in worker.headers} == {ours} == {listed["id"]}
        (record,) = [record for record in caplog.records if hasattr(record, FACTS)]
        assert getattr(record, FACTS)["client_request_id"] == "order-17"
        assert ", the client's 'order-17'" in record.getMessage()
        assert [
            span.attributes["baton.client.request.id"]
            for span in exporter.get_finished_spans()
            if span.attributes and "baton.client.request.id" in span.attributes
        ] == ["order-17"]

    async def test_a_request_that_is_refused_has_its_clients_id_too(self, cluster: Cluster) -> None:
        for status, key in ((401, "wrong"), (503, "k")):
            mine = {"x-request-id": "order-17", "authorization": f"Bearer {key}"}
            answer = await cluster.post(chat(), headers=mine)
            assert (answer.status_code, answer.headers["x-client-request-id"]) == (status, "order-17")
            assert answer.headers["x-request-id"] != "order-17"


async def test_an_answer_has_no_header_for_a_clients_id_that_was_not_given(cluster: Cluster) -> None:
    assert "x-client-request-id" not in (await cluster.post(chat())).headers

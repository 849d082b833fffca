"""An answer that is not streamed comes when all of it is decoded: until then its request is not ``reading``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from baton_serve.core.leases.store import LeaseState
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Hang, word

if TYPE_CHECKING:
    import httpx

WHOLE = "".join(map(word, range(4)))


async def hanging(cluster: Cluster, *roles: str, **body: Any) -> tuple[asyncio.Task[httpx.Response], Hang]:
    """A request at a worker that has not answered it: the last one, or whichever it was sent to."""
    workers = [await cluster.add(role) for role in roles]
    hang = Hang()
    deciding = [worker for worker in workers if worker.role == roles[-1]]
    for worker in deciding:
        worker.script.append(hang)
    asked = asyncio.create_task(cluster.post(chat(**body)))
    await eventually(lambda: any(worker.bodies for worker in deciding))
    for worker in deciding:
        if not worker.bodies:
            worker.script.clear()
    return asked, hang


async def shown(cluster: Cluster) -> str:
    (row,) = (await cluster.client.get("/admin/requests")).json()["requests"]
    return str(row["state"])


async def answered(cluster: Cluster, asked: asyncio.Task[httpx.Response]) -> None:
    response = await asked
    assert response.json()["choices"][0]["message"]["content"] == WHOLE
    cluster.check_idle()


async def test_an_unstreamed_request_decodes_once_d_has_read(cluster: Cluster) -> None:
    asked, hang = await hanging(cluster, "prefill", "decode")
    assert await shown(cluster) == "reading"
    cluster.leases.tracked["leasep01"](LeaseState.DONE)
    assert await shown(cluster) == "decoding"
    hang.release.set()
    await answered(cluster, asked)


@pytest.mark.parametrize("end", [LeaseState.EXPIRED, LeaseState.RELEASED, LeaseState.UNKNOWN])
async def test_a_lease_that_ends_otherwise_says_nothing_of_d(cluster: Cluster, end: LeaseState) -> None:
    asked, hang = await hanging(cluster, "prefill", "decode")
    cluster.leases.tracked["leasep01"](end)
    assert await shown(cluster) == "reading"
    hang.release.set()
    await answered(cluster, asked)


async def test_a_stream_decodes_with_its_first_byte(cluster: Cluster) -> None:
    asked, hang = await hanging(cluster, "prefill", "decode", stream=True)
    cluster.leases.tracked["leasep01"](LeaseState.DONE)
    assert await shown(cluster) == "reading"
    hang.release.set()
    assert (await asked).status_code == 200


async def test_a_request_that_has_nothing_to_read_decodes_at_once(cluster: Cluster) -> None:
    asked, hang = await hanging(cluster, "both")
    assert await shown(cluster) == "decoding"
    hang.release.set()
    await answered(cluster, asked)


async def test_a_d_that_dies_after_its_read_is_replaced(cluster: Cluster) -> None:
    """The blocks went with the read, so P is asked again."""
    asked, hang = await hanging(cluster, "prefill", "decode", "decode")
    cluster.leases.tracked["leasep01"](LeaseState.DONE)
    hang.reset = True
    hang.release.set()
    await answered(cluster, asked)
    assert [len(worker.bodies) for worker in cluster.workers] == [2, 1, 1]


async def test_a_worker_that_does_both_and_dies_is_replaced(cluster: Cluster) -> None:
    asked, hang = await hanging(cluster, "both", "both")
    hang.reset = True
    hang.release.set()
    await answered(cluster, asked)
    assert [len(worker.bodies) for worker in cluster.workers] == [1, 1]


@pytest.mark.parametrize(
    ("roles", "phases", "asking"),
    [
        (["prefill", "decode"], ["queued", "prefilling", "held", "reading", "decoding"], ["prefilling", "reading"]),
        (["both"], ["queued", "decoding"], ["decoding"]),
    ],
    ids=["apart", "alone"],
)
async def test_the_trace_of_an_unstreamed_request_has_each_phase_once(
    cluster: Cluster, exporter: InMemorySpanExporter, roles: list[str], phases: list[str], asking: list[str]
) -> None:
    """And what a worker does hangs below the phase in which it was asked."""
    asked, hang = await hanging(cluster, *roles)
    for lease in list(cluster.leases.tracked.values()):
        lease(LeaseState.DONE)
    hang.release.set()
    await answered(cluster, asked)
    await eventually(lambda: any(span.kind is SpanKind.SERVER for span in exporter.get_finished_spans()))
    spans = [span for span in exporter.get_finished_spans() if span.kind is not SpanKind.SERVER]
    assert [span.name for span in spans] == phases
    assert [span.name for span in spans if span.kind is SpanKind.CLIENT] == asking
    ids = {f"{span.context.span_id:016x}" for span in spans if span.kind is SpanKind.CLIENT and span.context}
    assert ids == {headers["traceparent"].split("-")[2] for worker in cluster.workers for headers in worker.headers}

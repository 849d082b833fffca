"""The page to watch the router on, its stream, and who may see it."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from baton_serve.core.net.served.connection import DROP
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.router.dashboard import schema
from baton_serve.router.dashboard.history import STEP_S
from baton_serve.router.dashboard.live import LiveStream
from baton_serve.router.dashboard.recorder import HistoryRecorder, read_totals
from baton_serve.router.dashboard.routes import page_files
from baton_serve.router.dashboard.schema import Snapshot
from baton_serve.router.dashboard.share import MAX_LISTED, local_share
from baton_serve.router.request.ended import MAX_TEXT_CHARS
from baton_serve.router.request.states import LIVE
from baton_serve.router.request.view import RequestView
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import Cluster, chat
from tests.kits.router.stub_workers import Hang, Refuse

if TYPE_CHECKING:
    import httpx

decoder = msgspec.json.Decoder(Snapshot)
FILES = page_files()


async def snapshots(response: httpx.Response) -> AsyncIterator[Snapshot]:
    """Every snapshot of the stream, checked against the schema."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield decoder.decode(line[6:])


async def until(stream: AsyncIterator[Snapshot], state: str) -> RequestView:
    """The one request, once it is shown in that state."""
    async for snapshot in stream:
        if snapshot.counts[state] == 1:
            (request,) = snapshot.requests
            assert request.state == state
            return request
    raise AssertionError("the stream ended")


def now(cluster: Cluster) -> Snapshot:
    return cluster.snapshots().take(0.0)


async def test_a_request_is_seen_on_its_way(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    prefilling, reading = Hang(), Hang()
    p.script.append(prefilling)
    d.script.append(reading)
    async with cluster.client.stream("GET", "/admin/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = snapshots(response)
        first = await anext(stream)
        assert (first.requests, set(first.counts.values())) == ([], {0})
        assert [(worker.id, worker.role) for worker in first.workers] == [("p0", "prefill"), ("d1", "decode")]
        await cluster.open(chat(stream=True, user="<b>me</b>"))
        seen = await until(stream, "prefilling")
        assert (seen.prefill_worker, seen.decode_worker, seen.lease_remaining_ms) == ("p0", None, None)
        assert seen.user == "<b>me</b>"
        prefilling.release.set()
        seen = await until(stream, "reading")
        assert (seen.prefill_worker, seen.decode_worker, seen.lease_remaining_ms) == ("p0", "d1", 4321)
        assert list(seen.phases_ms) == ["queued", "prefilling", "held"]
        reading.release.set()
        async for snapshot in stream:
            if not snapshot.requests:
                break
    cluster.check_idle()


async def test_the_history_tells_of_a_stream_that_ended(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    recorder = HistoryRecorder(cluster.router.requests)
    await cluster.post(chat(stream=True))
    recorder.history.sample(recorder.now_s + STEP_S, read_totals(cluster.router.requests))
    told = cluster.snapshots(recorder).take(0.0).history
    assert told.requests_per_s == [0.5] and told.failed_per_s == [0.0]
    assert told.tokens_per_s[0] is not None and told.tokens_per_s[0] > 0
    assert list(told.phases) == ["queued", "prefilling", "held", "reading"]
    assert {state: counts[0] for state, counts in told.live.items()} == dict.fromkeys(LIVE, 0)
    for lines in (told.ttft, told.itl, *told.phases.values()):
        assert lines.p50_ms[0] is not None and lines.p95_ms[0] is not None and lines.mean_ms[0] is not None
        assert lines.p50_ms[0] <= lines.p95_ms[0]
    ttft_ms, queued_ms = told.ttft.mean_ms[0], told.phases["queued"].mean_ms[0]
    assert ttft_ms is not None and queued_ms is not None and queued_ms < ttft_ms < 20_000


async def test_the_history_tells_which_answers_were_errors(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Refuse(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}))
    recorder = HistoryRecorder(cluster.router.requests)
    for body in (chat(), {}, chat(model="unknown")):
        await cluster.post(body)
    recorder.history.sample(recorder.now_s + STEP_S, read_totals(cluster.router.requests))
    recorder.history.sample(recorder.now_s + 2 * STEP_S, read_totals(cluster.router.requests))
    told = cluster.snapshots(recorder).take(0.0).history
    assert told.failed_by_status == {"400": [0.5, 0.0]}
    assert told.refused_by_status == {"400": [0.5, 0.0], "404": [0.5, 0.0]}


async def test_workers_show_their_blocks_if_they_told(cluster: Cluster) -> None:
    await cluster.add("prefill")
    (worker,) = cluster.pool
    assert now(cluster).workers[0].free_blocks == 0
    worker.report(WorkerLoad(free_blocks=4, cached_blocks=3, pinned_blocks=2, leased_blocks=1, draining=True), 0.0)
    shown = now(cluster).workers[0]
    assert (shown.free_blocks, shown.cached_blocks, shown.pinned_blocks, shown.leased_blocks) == (4, 3, 2, 1)
    assert (shown.healthy, shown.draining, shown.limit) == (True, True, 16)


async def test_only_the_oldest_and_newest_of_many_requests_are_listed(cluster: Cluster) -> None:
    await cluster.add("decode")
    p = await cluster.add("prefill", limit=1)
    p.script += [Hang() for _ in range(2)]
    num_requests = MAX_LISTED + 5
    for _ in range(num_requests):
        await cluster.open(chat(user="x" * 256))
    await cluster.until_state("queued", num_requests - 2)
    shown = now(cluster)
    assert (len(shown.requests), shown.num_hidden) == (MAX_LISTED, 5)
    assert (shown.counts["queued"], shown.queues.prefill.length) == (num_requests - 2, num_requests - 2)
    ids = [live.request_id for live in cluster.active]
    assert [request.id for request in shown.requests] == ids[: MAX_LISTED // 2] + ids[-MAX_LISTED // 2 :]
    waited_ms = max(request.in_state_ms for request in shown.requests if request.state == "queued")
    oldest_ms = now(cluster).queues.prefill.oldest_ms
    assert oldest_ms is not None and oldest_ms >= waited_ms
    assert shown.queues.held == schema.Queue(0, None)
    assert {request.user for request in shown.requests} == {"x" * MAX_TEXT_CHARS}


async def test_the_ages_of_all_requests_are_of_one_moment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to look at all of them: they are put in order by their ages."""
    await cluster.add("decode")
    p = await cluster.add("prefill", limit=1)
    p.script += [Hang() for _ in range(2)]
    for _ in range(5):
        await cluster.open(chat())
    await cluster.until_state("queued", 3)
    recorder = HistoryRecorder(cluster.router.requests)
    loop = asyncio.get_running_loop()
    times = itertools.count(loop.time(), 1)
    with monkeypatch.context() as slow:
        slow.setattr(loop, "time", lambda: next(times))
        ages = [
            request.age_ms
            for request in local_share(cluster.router.workers, cluster.router.requests, recorder).requests
        ]
    assert len(ages) == 5
    assert ages == sorted(ages, reverse=True)


@pytest.mark.settings(admin_token="secret")
async def test_the_stream_needs_the_token_and_the_page_does_not(cluster: Cluster) -> None:
    assert (await cluster.client.get("/admin/live")).status_code == 401
    assert (await cluster.client.get("/dashboard")).status_code == 200
    headers = {"authorization": "Bearer secret"}
    async with cluster.client.stream("GET", "/admin/live", headers=headers) as response:
        assert response.status_code == 200
        assert (await anext(snapshots(response))).workers == []


async def test_the_stream_ends_when_the_router_does(cluster: Cluster) -> None:
    async with cluster.client.stream("GET", "/admin/live") as response:
        stream = snapshots(response)
        await anext(stream)
        cluster.server.stop()
        async for _ in stream:
            pass


async def never() -> Any:
    return await asyncio.Event().wait()


async def test_a_slow_reader_gets_the_newest_and_nothing_is_kept_for_it(cluster: Cluster) -> None:
    """``send`` waits, as uvicorn's does when a client does not read: no snapshot is made until it returns."""
    board = cluster.snapshots()
    sent: list[bytes] = []
    taken = asyncio.Semaphore(0)
    waiting = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(message["body"])
            waiting.set()
            await taken.acquire()

    task = asyncio.create_task(LiveStream(board, lambda: False)({"type": "http", "state": {}}, never, send))
    await waiting.wait()
    waiting.clear()
    for _ in range(3):
        await cluster.add("decode")
    assert len(sent) == 1
    taken.release()
    await waiting.wait()
    assert len(sent) == 2
    assert len(decoder.decode(sent[1].split(b"data: ")[1]).workers) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("closing", [False, True])
async def test_a_reader_that_takes_nothing_is_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    monkeypatch.setattr("baton_serve.router.dashboard.live.STUCK_S", 0.0)
    dropped = asyncio.Event()

    async def send(message: Any) -> None:
        if "body" in message:
            await never()

    scope = {"type": "http", "state": {DROP: dropped.set}}
    async with asyncio.timeout(PATIENCE_S):
        board = cluster.snapshots()
        await LiveStream(board, lambda: closing)(scope, never, send)
    assert dropped.is_set()


async def test_the_page_is_closed_to_everything_from_outside(cluster: Cluster) -> None:
    for path in FILES:
        response = await cluster.client.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        urls = set(re.findall(r"(?:https?:)?//[a-z][\w.]*[^\s\"')]*", response.text))
        assert urls <= {"http://www.w3.org/2000/svg"}, "a name, not an address"


async def test_files_that_a_browser_has_are_not_sent_again(cluster: Cluster) -> None:
    for path in FILES:
        first = await cluster.client.get(path)
        again = await cluster.client.get(path, headers={"if-none-match": f"W/{first.headers['etag']}"})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
        changed = await cluster.client.get(path, headers={"if-none-match": '"another"'})
        assert changed.content == first.content


async def test_everything_the_page_needs_is_served(cluster: Cluster) -> None:
    page = (await cluster.client.get("/dashboard")).text
    wanted = set(re.findall(r"(?:src|href)=\"([^\"]+)\"", page))
    assert not re.search(r"<(script|style)[^>]*>[^<]|\son\w+=|\sstyle=", page), "the policy forbids inline code"
    scripts = {path: (await cluster.client.get(path)).text for path in FILES if path.endswith(".js")}
    wanted -= {"docs", "metrics", "#list"}  # links for people
    for script in scripts.values():
        wanted |= {f"dashboard/{name}" for name in re.findall(r"from \"\./([^\"]+)\"", script)}
        assert set(re.findall(r"byId\(\"([\w-]+)\"\)", script)) <= set(re.findall(r"id=\"([\w-]+)\"", page))
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert sink not in script
    assert {f"/{name}" for name in wanted} | {"/dashboard"} == FILES.keys()


def test_every_field_of_the_stream_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()
    for kind in vars(schema).values():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            for name in kind.__struct_fields__:
                assert f"`{name}`" in text, f"{kind.__name__}.{name}"

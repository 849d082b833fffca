"""A head that a connection repeats goes past the parser, and is checked each time."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.kits.port import Answer, Caller
from tests.kits.router.cluster import Cluster, chat
from tests.kits.router.stub_workers import Hang, StubWorker

#: Requests on one connection: heads are known from the third on.
NUM = 6
BODY = json.dumps(chat()).encode()
PAGE = "http://page.example"
KEY = "authorization: Bearer key"
pytestmark = pytest.mark.settings(
    api_keys=["key"],
    cors_origins=[PAGE],
    priority_classes=["urgent=-5", "usual=0"],
    client_priority="trusted",
    max_body_bytes=4096,
    max_requests=1,
)


def asking(*lines: str, body: bytes = b"", announced: int | None = None) -> bytes:
    """A request. ``announced``: the length of its body, if not all of it is here."""
    length = f"content-length: {len(body) if announced is None else announced}"
    head = ["POST /v1/chat/completions HTTP/1.1", "host: x", *lines, length]
    return "\r\n".join([*head, "", ""]).encode() + body


async def ask(caller: Caller, *lines: str) -> Answer:
    await caller.send(asking(*lines, body=BODY))
    return await caller.answer()


@pytest.fixture
async def prefill(cluster: Cluster) -> StubWorker:
    """The P of the client's requests."""
    await cluster.add("decode")
    return await cluster.add("prefill")


@pytest.fixture
async def caller(cluster: Cluster, prefill: StubWorker) -> Caller:
    return Caller(*await cluster.connect())


async def test_a_head_with_another_key_is_refused_each_time(caller: Caller) -> None:
    for _ in range(NUM):
        assert (await ask(caller, KEY)).status == 200
    for wrong in ("authorization: Bearer kez", "authorization: Bearer ke", "x-other: 1"):
        assert [(await ask(caller, wrong)).status for _ in range(NUM)] == [401] * NUM
    assert (await ask(caller, KEY)).status == 200


async def test_a_head_that_passed_once_may_not_announce_a_larger_body(caller: Caller) -> None:
    for _ in range(NUM):
        assert (await ask(caller, KEY)).status == 200
    await caller.send(asking(KEY, announced=4097))
    assert (await caller.answer()).status == 413


async def test_a_head_that_passed_once_is_still_refused_when_there_are_too_many(
    caller: Caller, prefill: StubWorker, cluster: Cluster
) -> None:
    """And the page may read why."""
    lines = (KEY, f"origin: {PAGE}")
    for _ in range(NUM):
        assert (await ask(caller, *lines)).status == 200
    hang = prefill.hangs()
    other = asyncio.create_task(cluster.post(chat(), headers={"authorization": "Bearer key"}))
    await cluster.until_state("prefilling")
    answer = await ask(caller, *lines)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (429, PAGE)
    hang.release.set()
    assert (await other).status_code == 200


async def test_a_page_is_told_each_time_that_it_may_read(caller: Caller) -> None:
    said = [await ask(caller, KEY, f"origin: {PAGE}") for _ in range(NUM)]
    assert [(one.status, one.headers["access-control-allow-origin"]) for one in said] == [(200, PAGE)] * NUM


async def test_the_priority_in_a_repeated_head_holds_for_each_request(caller: Caller, prefill: StubWorker) -> None:
    for _ in range(NUM):
        assert (await ask(caller, KEY, "x-baton-priority: urgent")).status == 200
    assert [body["priority"] for body in prefill.bodies] == [-5] * NUM


async def test_the_deadline_in_a_repeated_head_holds_for_each_request(caller: Caller, prefill: StubWorker) -> None:
    lines = (KEY, "x-request-timeout: 0.5")
    for _ in range(NUM):
        assert (await ask(caller, *lines)).status == 200
    prefill.script.append(Hang())
    assert (await ask(caller, *lines)).status == 504

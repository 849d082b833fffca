"""What a head says is found out once for the requests of a connection that repeat it, and holds for each of them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from router.front import hot
from router.settings import RouterSettings
from tests.kits.router.cluster import chat, make_settings
from tests.kits.router.stub_workers import Hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kits.router.cluster import Cluster
    from tests.kits.router.stub_workers import StubWorker

#: Requests on one connection: heads are known from the third on.
NUM = 6
BODY = json.dumps(chat()).encode()
PAGE = "http://page.example"
KEY = "authorization: Bearer key"


@pytest.fixture
def settings() -> RouterSettings:
    return make_settings(
        api_keys=["key"],
        cors_origins=[PAGE],
        priority_classes=["urgent=-5", "usual=0"],
        max_body_bytes=4096,
        max_requests=1,
    )


class Client:
    """A connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, *lines: str, body: bytes = BODY) -> tuple[int, str]:
        """The status and the head of the answer, in lower case."""
        head = ["POST /v1/chat/completions HTTP/1.1", "host: x", *lines, f"content-length: {len(body)}"]
        self._writer.write("\r\n".join([*head, "", ""]).encode() + body)
        return await self.answer()

    async def announce(self, *lines: str) -> tuple[int, str]:
        """As ``ask``, but the body never comes."""
        head = ["POST /v1/chat/completions HTTP/1.1", "host: x", *lines]
        self._writer.write("\r\n".join([*head, "", ""]).encode())
        return await self.answer()

    async def answer(self) -> tuple[int, str]:
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self._reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))
        return int(answer.split()[1]), answer


@pytest.fixture
async def prefill(cluster: Cluster) -> StubWorker:
    """The P of the client's requests."""
    await cluster.add("decode")
    return await cluster.add("prefill")


@pytest.fixture
async def client(cluster: Cluster, prefill: StubWorker) -> AsyncIterator[Client]:
    reader, writer = await cluster.connect()
    yield Client(reader, writer)
    writer.close()


@pytest.mark.interpreted
async def test_keys_are_looked_for_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    real = hot.key_in
    monkeypatch.setattr(hot, "key_in", lambda path, headers: looked.append(path) or real(path, headers))
    for _ in range(NUM):
        assert (await client.ask(KEY))[0] == 200
    assert len(looked) == 3, "the first two of a connection, and the one that shall hold for the rest"


async def test_a_head_with_another_key_is_refused_each_time(client: Client) -> None:
    for _ in range(NUM):
        assert (await client.ask(KEY))[0] == 200
    for wrong in ("authorization: Bearer kez", "authorization: Bearer ke", "x-other: 1"):
        assert [(await client.ask(wrong))[0] for _ in range(NUM)] == [401] * NUM
    assert (await client.ask(KEY))[0] == 200


async def test_what_passed_once_may_not_announce_a_larger_body(client: Client) -> None:
    for _ in range(NUM):
        assert (await client.ask(KEY))[0] == 200
    assert (await client.announce(KEY, "content-length: 4097"))[0] == 413


async def test_what_passed_once_is_still_one_too_many(client: Client, prefill: StubWorker, cluster: Cluster) -> None:
    """And the page may read why."""
    lines = (KEY, f"origin: {PAGE}")
    for _ in range(NUM):
        assert (await client.ask(*lines))[0] == 200
    hang = Hang()
    prefill.script.append(hang)
    other = asyncio.create_task(cluster.post(chat(), headers={"authorization": "Bearer key"}))
    await cluster.until_state("prefilling")
    status, head = await client.ask(*lines)
    assert (status, f"access-control-allow-origin: {PAGE}" in head) == (429, True)
    hang.release.set()
    assert (await other).status_code == 200


async def test_a_page_is_told_each_time_that_it_may_read(client: Client) -> None:
    said = [await client.ask(KEY, f"origin: {PAGE}") for _ in range(NUM)]
    assert [(status, f"access-control-allow-origin: {PAGE}" in head) for status, head in said] == [(200, True)] * NUM


async def test_the_priority_is_that_of_each(client: Client, prefill: StubWorker) -> None:
    for _ in range(NUM):
        assert (await client.ask(KEY, "x-baton-priority: urgent"))[0] == 200
    assert [body["priority"] for body in prefill.bodies] == [-5] * NUM


async def test_the_deadline_is_that_of_each(client: Client, prefill: StubWorker) -> None:
    lines = (KEY, "x-request-timeout: 0.5")
    for _ in range(NUM):
        assert (await client.ask(*lines))[0] == 200
    prefill.script.append(Hang())
    assert (await client.ask(*lines))[0] == 504

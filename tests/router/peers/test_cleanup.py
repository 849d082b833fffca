"""A router died: the workers are told, all at once, more than once if need be, and nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import pytest

from baton_serve.core.net.client.errors import CallError, ConnectError
from baton_serve.core.protocol.worker import Role
from baton_serve.router.peers import cleanup as cleanups
from baton_serve.router.peers.cleanup import Cleanup
from baton_serve.router.pool import Worker
from baton_serve.router.upstream.internal_calls import InternalCalls
from tests.kits.router.cluster import Cluster, eventually
from tests.kits.router.workers import new_worker

DEAD = "0123456789ab"
AT_ONCE = (0.0, 0.0)


class Answer:
    retry_after = content_type = metadata = b""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        self.is_closed = False

    async def chunk(self, timeout_s: float | None = None) -> bytes:
        raise NotImplementedError

    async def read(self, limit_bytes: int, timeout_s: float) -> bytes:
        return self.body

    def watch(self, gap_s: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


class Workers:
    """A client of workers that answer what the test wrote down; at its end, that there was nothing to end."""

    def __init__(self) -> None:
        self.scripts: dict[str, deque[Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.answers: list[Answer] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def request(self, method: str, base_url: str, path: str, headers: Any, body: bytes, *_: Any) -> Answer:
        assert method == "POST" and body == b""
        self.calls.append((base_url, path))
        await self.gate.wait()
        script = self.scripts.get(base_url)
        what = script.popleft() if script else (200, b'{"aborted": 0, "leases": 0}')
        if isinstance(what, CallError):
            raise what
        self.answers.append(Answer(*what))
        return self.answers[-1]

    async def close(self) -> None:
        self.gate.set()


def workers(*internal_urls: str) -> list[Worker]:
    return [
        new_worker(worker_id=f"w{number}", url=f"http://w{number}", role=Role.BOTH, limit=8, internal_url=url)
        for number, url in enumerate(internal_urls)
    ]


async def cleaned_up(upstream: Workers, *internal_urls: str) -> Cleanup:
    """A dead router's requests, with no pauses between attempts."""
    cleanup = Cleanup(InternalCalls(upstream), lambda: workers(*internal_urls), AT_ONCE)
    cleanup.start(DEAD)
    await cleanup.close()
    return cleanup


async def test_every_worker_with_an_internal_port_is_told_once() -> None:
    upstream = Workers()
    upstream.gate.clear()
    known = workers("http://a", "http://b", "", "http://c")
    cleanup = Cleanup(InternalCalls(upstream), lambda: known)
    cleanup.start(DEAD)
    cleanup.start(DEAD)
    await eventually(lambda: len(upstream.calls) == 3, "all are told at once, none waits for another")
    upstream.gate.set()
    await cleanup.close()
    assert sorted(upstream.calls) == [(f"http://{name}", f"/internal/routers/{DEAD}/gone") for name in "abc"]
    assert all(answer.is_closed for answer in upstream.answers)
    assert (cleanup.num_dead, cleanup.outcomes) == (1, {"told": 3, "not_told": 0})


@pytest.mark.parametrize(
    "failure", [ConnectError("refused"), (500, b"{}"), (200, b"no json"), (200, b'{"aborted": 1}')]
)
async def test_a_worker_that_fails_is_told_again(failure: Any) -> None:
    upstream = Workers()
    upstream.scripts["http://a"] = deque([failure, failure])
    cleanup = await cleaned_up(upstream, "http://a", "http://b")
    assert [url for url, _ in upstream.calls].count("http://a") == 3
    assert cleanup.outcomes == {"told": 2, "not_told": 0}


async def test_a_worker_that_cannot_be_told_is_given_up_after_some_attempts(caplog: pytest.LogCaptureFixture) -> None:
    upstream = Workers()
    upstream.scripts["http://a"] = deque([ConnectError("nobody there")] * 9)
    upstream.scripts["http://b"] = deque([(200, b'{"aborted": 3, "leases": 2}')])
    cleanup = await cleaned_up(upstream, "http://a", "http://b")
    assert [url for url, _ in upstream.calls].count("http://a") == 1 + len(AT_ONCE)
    assert cleanup.outcomes == {"told": 1, "not_told": 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"router {DEAD} is gone: 1 of 2 workers told" in record.message
    assert "3 sequences aborted, 2 leases dropped; not told: w0 (nobody there)" in record.message


@pytest.mark.parametrize("status", [401, 404])
async def test_a_worker_that_refuses_is_not_asked_again(status: int) -> None:
    upstream = Workers()
    upstream.scripts["http://a"] = deque([(status, b"{}")])
    cleanup = await cleaned_up(upstream, "http://a")
    assert len(upstream.calls) == 1 and cleanup.outcomes == {"told": 0, "not_told": 1}


async def test_a_worker_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanups, "TELL_GONE_S", 0.01)
    upstream = Workers()
    upstream.gate.clear()
    cleanup = await cleaned_up(upstream, "http://a")
    assert cleanup.outcomes == {"told": 0, "not_told": 1}


async def test_the_number_of_cleanups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanups, "MAX_CLEANUPS", 1)
    upstream = Workers()
    cleanup = Cleanup(InternalCalls(upstream), lambda: workers("http://a"))
    cleanup.start(DEAD)
    cleanup.start("f" * 12)
    await cleanup.close()
    assert len(upstream.calls) == 1
    assert (cleanup.num_dead, cleanup.outcomes) == (2, {"told": 1, "not_told": 1})


async def test_a_verdict_of_the_peers_gets_to_the_workers_and_into_the_metrics(cluster: Cluster) -> None:
    """These workers do not know the call."""
    await cluster.add("prefill")
    await cluster.add("decode", ours=False)
    for tell in cluster.peers.on_dead:
        tell(DEAD)
    await eventually(lambda: cluster.cleanup.outcomes["not_told"] == 1)
    page = (await cluster.client.get("/metrics")).text
    assert "baton_router_dead_routers_total 1.0" in page
    assert 'baton_router_dead_router_calls_total{outcome="not_told"} 1.0' in page

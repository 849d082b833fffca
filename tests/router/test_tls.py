"""The router with TLS: to clients, to workers, to other routers. Nothing goes without it where it is set up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

from baton_serve.baton.operator.admin_client import AdminClient, AdminError
from baton_serve.baton.settings import AdminSettings
from baton_serve.core.net.client.errors import CallError, ConnectError
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.core.net.tls import Files, InternalTls
from baton_serve.router.edge.tls import OnlyTls
from baton_serve.router.settings import RouterSettings
from deploy.healthcheck import is_healthy
from tests.kits.certificates import Authority, Certified
from tests.kits.registry import worker as registered
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings, spoken
from tests.kits.router.other_router import TOKEN, OtherRouter, linked, state
from tests.kits.router.stranger import Stranger
from tests.kits.router.stub_workers import StubWorker

HEADERS = (("authorization", "Bearer s3cret"),)


def internal(given: Certified) -> InternalTls:
    return InternalTls(Files(given.certificate, given.key, given.ca, "internal_"))


@pytest.fixture
def settings(authority: Authority) -> RouterSettings:
    own = authority.of("router.internal")
    return make_settings(**own.public, **own.internal)


@pytest_asyncio.fixture
async def upstream(authority: Authority) -> AsyncIterator[HttpClient]:
    made = HttpClient(5.0, internal(authority.of("router.internal")))
    yield made
    await made.close()


async def test_a_request_goes_through_router_and_workers(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    assert all(url.startswith("https://") for url in (cluster.url, p.url, d.url))
    answer = await cluster.post(chat(stream=True))
    assert answer.status_code == 200 and spoken(answer.text)
    assert (len(p.bodies), len(d.bodies)) == (1, 1)
    whole = await cluster.post(chat())
    assert whole.status_code == 200
    port = int(cluster.url.rpartition(":")[2])
    assert await asyncio.to_thread(is_healthy, port), "as the container asks it"


async def test_the_public_port_answers_nobody_without_tls(cluster: Cluster) -> None:
    async with httpx.AsyncClient(base_url=cluster.url.replace("https", "http")) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/health")
    assert not cluster.metrics.refused


async def ask(upstream: HttpClient, url: str) -> int:
    answer = await upstream.request("POST", url, "/internal/drain", HEADERS, b"", 5)
    answer.close()
    return answer.status


async def test_a_worker_that_does_not_speak_tls_gets_no_token(
    upstream: HttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stranger(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n") as stranger:
        for _ in range(3):
            with pytest.raises(ConnectError):
                await ask(upstream, f"http://127.0.0.1:{stranger.port}")
        assert stranger.heard == b""
        with pytest.raises(ConnectError):
            await ask(upstream, f"https://127.0.0.1:{stranger.port}")
        await stranger.closed.wait()
        assert b"s3cret" not in stranger.heard
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "it does not speak TLS, which is set up here",
        "no TLS: wrong version number",
    ]


async def test_a_worker_that_is_certified_by_somebody_else_gets_no_token(
    upstream: HttpClient, other_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await StubWorker("decode").start(tls=internal(other_authority.of("d1.internal")).server(internal=False))
    with pytest.raises(ConnectError):
        await ask(upstream, worker.url)
    assert "its certificate is not accepted" in caplog.text
    await worker.stop()


async def test_a_router_that_is_certified_by_somebody_else_is_not_heard(
    authority: Authority, other_authority: Authority
) -> None:
    stranger = other_authority.of("router.internal")
    upstream = HttpClient(5.0, InternalTls(Files(stranger.certificate, stranger.key, authority.ca)))
    worker = await StubWorker("decode").start(tls=internal(authority.of("d1.internal")).server(internal=True))
    with pytest.raises(CallError):
        answer = await upstream.request("GET", worker.url, "/health", HEADERS, b"", 5)
        await answer.read(100, 5)
    assert worker.num_health == 0
    await upstream.close()
    await worker.stop()


async def test_an_address_that_may_be_anybodys_is_checked_as_this_machine_does(
    upstream: HttpClient, authority: Authority
) -> None:
    worker = await StubWorker("decode").start(tls=internal(authority.of("d1.internal")).server(internal=False))
    upstream.foreign.add(worker.url)
    with pytest.raises(ConnectError):  # our CA is nobody's whom this machine trusts
        await ask(upstream, worker.url)
    await worker.stop()


@pytest.mark.parametrize(("trusted", "foreign"), [(True, False), (False, True)])
async def test_which_static_workers_are_ours_is_a_setting(authority: Authority, trusted: bool, foreign: bool) -> None:
    cluster = Cluster(make_settings(**authority.of("router.internal").internal, trust_static_workers=trusted))
    cluster.pool.add_static(["https://p1.internal:1"], [])
    assert cluster.upstream.foreign == ({"https://p1.internal:1"} if foreign else set())  # type: ignore[attr-defined]
    cluster.pool.remove_static(next(iter(cluster.pool)))
    assert cluster.upstream.foreign == set()  # type: ignore[attr-defined]
    await cluster.upstream.close()


async def test_no_worker_without_tls_can_be_added(cluster: Cluster) -> None:
    for url in ("http://10.0.0.1:8100", "10.0.0.1:8100"):
        answer = await cluster.client.post("/admin/workers", json={"url": url, "role": "both"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "url")
    assert len(cluster.pool) == 0


def test_announced_workers_without_tls_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Known:
        ids: tuple[str, ...] = ()

        def apply(self, entries: Any) -> None:
            self.ids = tuple(status.record.worker_id for status in entries)

    known = Known()
    follower = OnlyTls(known)
    secure = registered("a", url="https://a:1", internal_url="https://a:2")
    others = [
        registered("b", url="http://b:1", internal_url="https://b:2"),
        registered("c", url="https://c:1", internal_url="http://c:2"),
    ]
    for _ in range(3):
        follower.apply([secure, *others])
        assert known.ids == ("a",)
    assert [line.split()[1] for line in caplog.messages] == ["b", "c"], "once each"


async def test_routers_meet_over_tls(authority: Authority) -> None:
    tls = internal(authority.of("router.internal"))
    async with linked(tls=tls) as peers, OtherRouter(tls=tls) as other:
        assert other.record.internal_url.startswith("https://")
        peers.apply([other.record])
        await eventually(lambda: state(peers) == "linked")
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert answer.status == 200


async def test_routers_of_another_ca_do_not_meet(authority: Authority, other_authority: Authority) -> None:
    ours, theirs = (internal(one.of("router.internal")) for one in (authority, other_authority))
    async with linked(tls=ours) as peers, OtherRouter(tls=theirs) as other:
        peers.apply([other.record])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert answer.status == 0 and "certificate" in answer.error
        assert state(peers) != "linked"


async def test_a_router_without_tls_does_not_meet_one_with_tls(authority: Authority) -> None:
    async with linked(tls=internal(authority.of("router.internal"))) as peers, OtherRouter() as other:
        peers.apply([other.record])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert "it does not speak TLS" in answer.error
    async with linked() as peers, OtherRouter(tls=internal(authority.of("router.internal"))) as other:
        peers.apply([other.record])
        (answer,) = await peers.gather("GET", "/internal/echo")
        assert "it speaks TLS, which is not set up here" in answer.error
        assert TOKEN not in answer.error


class TestOperators:
    """``baton requests`` and the others, which ask with a CA of their own."""

    async def test_an_operator_who_names_the_ca_is_answered(self, cluster: Cluster, authority: Authority) -> None:
        client = AdminClient(AdminSettings(url=cluster.url, ca_file=authority.ca))
        assert await asyncio.to_thread(client.workers) == []

    async def test_an_operator_without_the_ca_is_told_what_to_name(self, cluster: Cluster) -> None:
        client = AdminClient(AdminSettings(url=cluster.url))
        with pytest.raises(AdminError, match=r"its certificate is not accepted: .*; --ca-file names the CA"):
            await asyncio.to_thread(client.workers)

    async def test_a_ca_that_cannot_be_read_is_named(self, cluster: Cluster, tmp_path: Any) -> None:
        client = AdminClient(AdminSettings(url=cluster.url, ca_file=tmp_path / "none.pem"))
        with pytest.raises(AdminError, match=r"ca_file: .*none.pem cannot be used: No such file"):
            await asyncio.to_thread(client.workers)

    async def test_a_url_without_tls_is_hinted_at(self, cluster: Cluster) -> None:
        client = AdminClient(AdminSettings(url=cluster.url.replace("https", "http")))
        with pytest.raises(AdminError, match="if it speaks TLS, its URL begins with https://"):
            await asyncio.to_thread(client.workers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_certificate_file": "/c"},
        {"tls_key_file": "/k"},
        {"prefill": ("http://p:1",), "decode": ("https://d:1",)},
        {"prefill": ("https://p:1",), "decode": ("d:1",)},
    ],
)
def test_settings_of_tls_that_do_not_go_together_are_refused(authority: Authority, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_settings(**authority.of("router.internal").internal, **wrong)

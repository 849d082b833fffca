"""What HTTP clients of other kinds than the usual libraries send: offers, old versions, probes, codings."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from tests.kits.router.cluster import Cluster, chat

if TYPE_CHECKING:
    import httpx

OFFER = (
    "content-type: application/json\r\n"
    "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
)
COMPLETION = {"model": "m", "prompt": "hi", "max_tokens": 4}


async def said(cluster: Cluster, sent: bytes) -> tuple[bytes, bytes]:
    """Head and body of an answer that ends with its connection."""
    reader, writer = await cluster.connect()
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return head, body


class TestOffers:
    @pytest.mark.parametrize(
        ("path", "body", "known"),
        [
            ("/v1/chat/completions", chat(stream=False), '"chat.completion"'),
            ("/v1/completions", COMPLETION, '"text_completion"'),
            ("/admin/abort", {"all": True}, '"aborted"'),
        ],
    )
    async def test_a_request_that_offers_http_2_is_answered(
        self, cluster: Cluster, path: str, body: dict[str, object], known: str
    ) -> None:
        await cluster.fleet("prefill", "decode")
        raw = json.dumps(body)
        sent = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{OFFER}content-length: {len(raw)}\r\n\r\n{raw}".encode()
        reader, writer = await cluster.connect()
        for pieces in ([sent], [sent[:-5], sent[-5:]], [sent[:30], sent[30:]]):  # on one connection
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            assert head.startswith("HTTP/1.1 200 ")
            assert known in (await reader.readexactly(length)).decode()


class TestOldClients:
    async def test_a_stream_is_events_alone(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        raw = json.dumps(chat(stream=True)).encode()
        head, body = await said(
            cluster, b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw)
        )
        assert head.startswith(b"HTTP/1.1 200 ") and b"chunked" not in head and b"\r\nconnection: close" in head
        events = body.split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        assert all(json.loads(event.removeprefix(b"data: "))["object"] for event in events[:-2])

    @pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
    async def test_probes_without_a_host_are_answered(self, cluster: Cluster, path: str) -> None:
        head, body = await said(cluster, f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert head.startswith(b"HTTP/1.1 200 ") and body

    async def test_probes_with_a_foreign_host_are_refused(self, cluster: Cluster) -> None:
        head, _ = await said(cluster, b"GET /health HTTP/1.0\r\nhost: attacker.example\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 403 ")


class TestHead:
    async def test_probes_may_ask_for_the_status_alone(self, cluster: Cluster) -> None:
        assert [await self.status(cluster, path) for path in ("/health", "/ready")] == [200, 503]
        await cluster.fleet("prefill", "decode")
        assert [await self.status(cluster, path) for path in ("/health", "/ready", "/ping", "/version")] == [200] * 4

    @pytest.mark.parametrize(
        "path", ["/", "/metrics", "/load", "/openapi.json", "/docs", "/v1/models", "/admin/workers"]
    )
    async def test_every_page_answers_head(self, cluster: Cluster, path: str) -> None:
        whole = await cluster.client.get(path)
        answer = await cluster.client.head(path)
        assert (answer.status_code, answer.content) == (200, b"") and whole.content
        assert answer.headers["content-type"] == whole.headers["content-type"]
        assert (await cluster.client.get("/health")).status_code == 200, "on the same connection"

    @pytest.mark.parametrize(("path", "status"), [("/admin/abort", 405), ("/admin/live", 405), ("/nowhere", 404)])
    async def test_paths_that_are_no_pages_do_not_answer_head(self, cluster: Cluster, path: str, status: int) -> None:
        assert await self.status(cluster, path) == status

    async def status(self, cluster: Cluster, path: str) -> int:
        answer = await cluster.client.head(path)
        assert answer.content == b""
        return answer.status_code


class TestCompressedBodies:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/admin/abort"])
    async def test_compressed_bodies_are_refused_by_the_name_of_the_header(self, cluster: Cluster, path: str) -> None:
        body = gzip.compress(json.dumps(chat()).encode())
        answer = await cluster.client.post(path, content=body, headers={"content-encoding": "gzip"})
        assert told(answer) == (415, "content-encoding", "unsupported_content_encoding")

    async def test_identity_is_no_compression(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        answer = await cluster.client.post(
            "/v1/chat/completions", json=chat(stream=False), headers={"content-encoding": "identity"}
        )
        assert answer.status_code == 200


def told(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]

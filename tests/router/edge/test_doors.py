"""Where no token guards a path: under which names it is served, and for whose pages. And what browsers are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tests.kits.router.cluster import Cluster, chat, make_settings

if TYPE_CHECKING:
    import httpx

REBOUND = {"host": "attacker.example:8000"}
PAGE = "https://chat.example"
OTHER_PAGE = "https://attacker.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-stainless-os"}
ASK = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer boss"}
KEY = {"authorization": "Bearer k"}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def asked(cluster: Cluster) -> int:
    """Requests that any worker got."""
    return sum(len(worker.bodies) for worker in cluster.workers)


class TestRebinding:
    @pytest.mark.parametrize(
        "path",
        [
            *("/", "/health", "/ready", "/metrics", "/dashboard", "/docs", "/openapi.json", "/nothing"),
            *("/v1/models", "/v1/models/m", "/admin/requests", "/admin/workers", "/admin/live"),
        ],
    )
    async def test_a_page_whose_name_was_rebound_reads_nothing(self, cluster: Cluster, path: str) -> None:
        assert code(await cluster.client.get(path, headers=REBOUND)) == (403, "host_not_allowed")

    @pytest.mark.parametrize("path", ["/admin/abort", "/admin/workers", "/admin/workers/d1/drain", ASK])
    async def test_a_page_whose_name_was_rebound_does_nothing(self, cluster: Cluster, path: str) -> None:
        await cluster.fleet("prefill", "decode")
        added = {"url": "http://attacker.example:80", "role": "both", "all": True}
        answer = await cluster.client.post(path, json=added if "admin" in path else chat(), headers=REBOUND)
        assert code(answer) == (403, "host_not_allowed")
        assert asked(cluster) == 0 and [worker.standing.left_out for worker in cluster.pool] == [False, False]

    @pytest.mark.parametrize("host", ["localhost", "a.localhost:1", "127.0.0.1:9", "[::1]:8000"])
    async def test_names_of_this_machine_are_served(self, cluster: Cluster, host: str) -> None:
        await cluster.fleet("prefill", "decode")
        answer = await cluster.client.post(ASK, json=chat(), headers={"host": host})
        assert answer.status_code == 200
        assert (await cluster.client.get("/admin/requests", headers={"host": host})).status_code == 200


@pytest.mark.settings(admin_token="boss", api_keys=("k",))
class TestTokens:
    async def test_paths_that_a_token_guards_are_served_under_any_name(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        assert (await cluster.client.get("/admin/requests", headers=REBOUND | ADMIN)).status_code == 200
        assert (await cluster.client.post(ASK, json=chat(), headers=REBOUND | KEY)).status_code == 200
        assert (await cluster.client.get("/dashboard", headers=REBOUND)).status_code == 200
        assert code(await cluster.client.get("/v1/models", headers=REBOUND)) == (401, "invalid_api_key")

    @pytest.mark.parametrize("path", ["/metrics", "/health", "/ready", "/nothing"])
    async def test_paths_that_no_token_guards_are_refused_under_a_foreign_name(
        self, cluster: Cluster, path: str
    ) -> None:
        assert code(await cluster.client.get(path, headers=REBOUND)) == (403, "host_not_allowed")


@pytest.mark.settings(allowed_hosts=("LLM.example", "[fd00::5]"))
async def test_allowed_hosts_are_names_of_ours(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    for host in ("llm.example", "llm.example:8443", "[fd00::5]:1"):
        assert (await cluster.client.post(ASK, json=chat(), headers={"host": host})).status_code == 200
        assert (await cluster.client.get("/metrics", headers={"host": host})).status_code == 200
    assert code(await cluster.client.get("/metrics", headers=REBOUND)) == (403, "host_not_allowed")


class TestOtherSites:
    """A page that asks 127.0.0.1 outright: it cannot read the answer, and need not to do harm."""

    @pytest.mark.parametrize(
        "headers",
        [
            *({"origin": OTHER_PAGE}, {"origin": "null"}),
            *({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}),
        ],
    )
    @pytest.mark.parametrize("path", [ASK, "/v1/completions", "/admin/abort", "/admin/workers/d1/drain"])
    async def test_nothing_is_done_for_pages_of_other_sites(
        self, cluster: Cluster, path: str, headers: dict[str, str]
    ) -> None:
        await cluster.fleet("prefill", "decode")
        body = json.dumps(chat()).encode()  # as text, which a page may send without asking first
        answer = await cluster.client.post(path, content=body, headers={"content-type": "text/plain"} | headers)
        assert code(answer) == (403, "other_site")
        assert asked(cluster) == 0 and [worker.standing.left_out for worker in cluster.pool] == [False, False]
        assert ("cors_origins" in answer.json()["error"]["message"]) is path.startswith("/v1")

    async def test_a_preflight_is_told_no(self, cluster: Cluster) -> None:
        answer = await cluster.client.options(ASK, headers={"origin": OTHER_PAGE} | PREFLIGHT)
        assert code(answer) == (403, "other_site")
        assert not [name for name in answer.headers if name.startswith("access-control")]

    async def test_our_own_pages_are_served(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        proxied = {"origin": "http://proxy.example", "sec-fetch-site": "same-origin"}
        for headers in ({"origin": cluster.url}, proxied, {"sec-fetch-site": "none"}):
            assert (await cluster.client.post(ASK, json=chat(), headers=headers)).status_code == 200
            assert (await cluster.client.post("/admin/abort", json={"all": True}, headers=headers)).status_code == 200

    async def test_a_link_on_another_page_may_lead_here(self, cluster: Cluster) -> None:
        answer = await cluster.client.get("/dashboard", headers={"sec-fetch-site": "cross-site"})
        assert answer.status_code == 200


def check_opened(answer: httpx.Response, origin: str = PAGE) -> None:
    """The page may read it, and what it says beside its body."""
    assert answer.headers["access-control-allow-origin"] == origin
    assert {"x-request-id", "retry-after"} <= set(answer.headers["access-control-expose-headers"].split(", "))
    assert "access-control-allow-credentials" not in answer.headers
    assert ("origin" in answer.headers.get("vary", "")) is (origin != "*")


@pytest.mark.settings(cors_origins=(PAGE, "http://localhost:3000"))
class TestCors:
    async def test_a_named_page_asks_and_reads(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        page = {"origin": PAGE, "sec-fetch-site": "cross-site"}
        answer = await cluster.client.options(ASK, headers=page | PREFLIGHT)
        assert (answer.status_code, answer.content) == (204, b"")
        check_opened(answer)
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        for stream in (False, True):
            answer = await cluster.client.post(ASK, json=chat(stream=stream), headers=page)
            assert answer.status_code == 200
            check_opened(answer)
        check_opened(await cluster.client.get("/v1/models", headers=page))

    async def test_a_named_page_reads_errors_too(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        for path, body, status in (
            (ASK, b"{", 400),
            (ASK, json.dumps(chat(model="none")).encode(), 404),
            ("/v1/nothing", b"", 404),
        ):
            answer = await cluster.client.post(path, content=body, headers={"origin": PAGE})
            assert answer.status_code == status
            check_opened(answer)

    @pytest.mark.parametrize("path", ["/admin/abort", "/admin/requests", "/metrics", "/health"])
    async def test_nothing_but_the_api_is_opened(self, cluster: Cluster, path: str) -> None:
        for answer in (
            await cluster.client.options(path, headers={"origin": PAGE} | PREFLIGHT),
            await cluster.client.get(path, headers={"origin": PAGE}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]

    async def test_a_page_that_was_not_named_is_refused(self, cluster: Cluster) -> None:
        for origin in (OTHER_PAGE, "https://chat.example.attacker.example", "http://chat.example", "null"):
            answer = await cluster.client.post(ASK, json=chat(), headers={"origin": origin})
            assert code(answer) == (403, "other_site")
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "origin"

    async def test_a_named_page_has_to_call_the_router_by_one_of_its_names(self, cluster: Cluster) -> None:
        answer = await cluster.client.post(ASK, json=chat(), headers=REBOUND | {"origin": PAGE})
        assert code(answer) == (403, "host_not_allowed")

    async def test_headers_that_a_page_wants_to_send_are_not_repeated_blindly(self, cluster: Cluster) -> None:
        for names in ("x" * 5000, "a b", "a,,b", "a;b"):
            asked = PREFLIGHT | {"origin": PAGE, "access-control-request-headers": names}
            answer = await cluster.client.options(ASK, headers=asked)
            assert answer.status_code == 204 and "access-control-allow-headers" not in answer.headers

    async def test_a_page_on_the_internet_may_be_let_onto_this_network(self, cluster: Cluster) -> None:
        asked = PREFLIGHT | {"origin": PAGE, "access-control-request-private-network": "true"}
        answer = await cluster.client.options(ASK, headers=asked)
        assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.settings(cors_origins=("*",), api_keys=("k",), max_requests=1)
class TestCorsAndKeys:
    async def test_the_preflight_needs_no_key_and_everything_else_does(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        answer = await cluster.client.options(ASK, headers={"origin": OTHER_PAGE} | PREFLIGHT)
        assert answer.status_code == 204
        check_opened(answer, "*")
        answer = await cluster.client.post(ASK, json=chat(), headers={"origin": OTHER_PAGE})
        assert code(answer) == (401, "invalid_api_key")
        check_opened(answer, "*")
        answer = await cluster.client.post(ASK, json=chat(), headers={"origin": OTHER_PAGE} | KEY)
        assert answer.status_code == 200
        check_opened(answer, "*")

    async def test_a_page_reads_that_there_are_too_many_requests(self, cluster: Cluster) -> None:
        reader, writer = await cluster.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\n")
        writer.write(b"content-length: 99\r\nexpect: 100-continue\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"100"  # its body is being read
        answer = await cluster.client.post(ASK, json=chat(), headers={"origin": PAGE} | KEY)
        assert answer.status_code == 429 and "retry-after" in answer.headers
        check_opened(answer, "*")


@pytest.mark.settings(api_keys=("k",))
class TestKeysWithoutCors:
    async def test_a_preflight_says_which_setting_is_missing(self, cluster: Cluster) -> None:
        answer = await cluster.client.options(ASK, headers={"origin": PAGE} | PREFLIGHT)
        assert code(answer) == (403, "other_site") and "cors_origins" in answer.text

    async def test_a_program_that_says_an_origin_has_its_key(self, cluster: Cluster) -> None:
        await cluster.fleet("prefill", "decode")
        answer = await cluster.client.post(ASK, json=chat(), headers={"origin": "app://tool"} | KEY)
        assert answer.status_code == 200 and "vary" not in answer.headers


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("HTTPS://Chat.example", "https://chat.example"),
            ("https://chat.example:443/", "https://chat.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
            ("app://obsidian.md", "app://obsidian.md"),
            ("chrome-extension://abcdefghijklmnop", "chrome-extension://abcdefghijklmnop"),
        ],
    )
    def test_origins_are_kept_as_browsers_write_them(self, given: str, meant: str) -> None:
        assert make_settings(cors_origins=(given,)).cors_origins == (meant,)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"cors_origins": ("*",)},
            {"cors_origins": ("null",)},
            {"cors_origins": ("chat.example",)},
            {"cors_origins": ("https://chat.example/app",)},
            {"cors_origins": ("https://u@chat.example",)},
            {"cors_origins": ("https://*.example",)},
            {"allowed_hosts": ("llm.example:8000",)},
            {"allowed_hosts": ("http://llm.example",)},
            {"allowed_hosts": ("",)},
        ],
    )
    def test_an_origin_or_host_that_would_never_match_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            make_settings(**wrong)


@pytest.mark.settings(admin_token="boss", api_keys=("k",), allowed_hosts=("*",))
class TestNowhereElse:
    """``Location`` is never made of ``Host``: what a cache keeps of it would send others there."""

    @pytest.mark.parametrize("path", ["/dashboard/", "/admin/requests/", "/v1/models/", "/metrics/", "/health/"])
    @pytest.mark.parametrize("host", ["attacker.example", "attacker.example/x?", "["])
    async def test_no_answer_leads_to_where_the_host_header_says(self, cluster: Cluster, path: str, host: str) -> None:
        answer = await cluster.client.get(path, headers={"host": host} | (ADMIN if "admin" in path else KEY))
        assert answer.status_code < 500
        assert answer.headers.get("location", "../dashboard") == "../dashboard"

    async def test_the_page_is_found_with_a_slash(self, cluster: Cluster) -> None:
        answer = await cluster.client.get("/dashboard/", follow_redirects=True)
        assert (answer.status_code, answer.url.path) == (200, "/dashboard")

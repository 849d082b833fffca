"""A port without a token, on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from baton_serve.workers.app import guarded, local_hosts
from baton_serve.workers.settings import WorkerSettings
from tests.kits.port import App, serving


@asynccontextmanager
async def port(app: App, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """A worker's, as it would serve ``app``."""
    hosts = local_hosts(WorkerSettings(model="m", **settings), "127.0.0.1")
    async with (
        serving(other_app=guarded(app, hosts)) as served,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.number}") as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"host": "attacker.example"}, "host_not_allowed"),
        ({"origin": "https://attacker.example"}, "other_site"),
        ({"sec-fetch-site": "cross-site"}, "other_site"),
    ],
)
async def test_a_page_of_another_site_does_not_reach_the_application(headers: dict[str, str], why: str) -> None:
    app = App()
    async with port(app) as client:
        answer = await client.post("/internal/drain", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, why)
        assert app.scopes == []
        assert (await client.post("/internal/drain")).status_code == 200


async def test_a_host_name_may_be_allowed_by_a_setting() -> None:
    app = App()
    async with port(app, allowed_hosts=("d1.internal",)) as client:
        assert (await client.get("/load", headers={"host": "d1.internal:8100"})).status_code == 200


async def test_a_port_with_a_token_is_served_under_any_name() -> None:
    app = App()
    async with port(app, internal_token="secret") as client:
        assert (await client.get("/metrics", headers={"host": "scraped.example"})).status_code == 200

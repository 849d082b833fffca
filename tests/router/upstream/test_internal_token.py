"""Who is shown the internal token: workers that the registry knows, and no other engine."""

from __future__ import annotations

import pytest

from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, chat, make_settings
from tests.kits.router.stub_workers import StubWorker

HEADER = "x-baton-internal-token"


@pytest.fixture(params=[False, True], ids=["strangers", "trusted"])
def settings(request: pytest.FixtureRequest) -> RouterSettings:
    return make_settings(internal_token="sesame", trust_static_workers=request.param)


async def test_workers_of_the_registry_are_ours(cluster: Cluster) -> None:
    p, d = await cluster.fleet("prefill", "decode")
    assert (await cluster.post(chat())).status_code == 200
    assert [worker.headers[0].get(HEADER) for worker in (p, d)] == ["sesame", "sesame"]


async def test_an_address_on_the_command_line_may_be_anybodys(cluster: Cluster, settings: RouterSettings) -> None:
    p, d = [await StubWorker(role, ours=False).start() for role in ("prefill", "decode")]
    cluster.pool.add_static([p.url], [d.url])
    assert (await cluster.post(chat())).status_code == 200
    expected = "sesame" if settings.trust_static_workers else None
    assert [worker.headers[0].get(HEADER) for worker in (p, d)] == [expected, expected]
    await p.stop()
    await d.stop()

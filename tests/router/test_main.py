"""The parts of a router process are closed, each of them, whatever another one meets."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.net.sockets import listen
from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.router.front.server import RouterServer
from baton_serve.router.main import connect, serve
from baton_serve.router.pool.health import HealthProbes
from baton_serve.router.settings import RouterSettings
from baton_serve.router.upstream.prefill_aborts import PrefillAborts

pytestmark = pytest.mark.settings(redis_url="", prefill=["http://127.0.0.1:1"], decode=["http://127.0.0.1:1"])


async def test_a_part_that_cannot_be_closed_keeps_no_other_one_open(
    settings: RouterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    close_probes = HealthProbes.close

    async def fails(probes: HealthProbes) -> None:
        await close_probes(probes)
        raise KeyError("a bug while it is closed")

    async def stops(server: RouterServer, sockets: object) -> None:
        server.started = True

    close = PrefillAborts.close

    async def notes(aborts: PrefillAborts) -> None:
        closed.append("aborts")
        await close(aborts)

    monkeypatch.setattr(HealthProbes, "close", fails)
    monkeypatch.setattr(PrefillAborts, "close", notes)
    monkeypatch.setattr(RouterServer, "serve", stops)
    stores = connect(settings)
    close_leases = stores.leases.close
    monkeypatch.setattr(stores.leases, "close", lambda: (closed.append("store"), close_leases())[0])
    sock = listen("127.0.0.1", 0)
    with sock, pytest.raises(KeyError, match="while it is closed"):
        await serve(settings, sock, stores, StatusPipe(None))
    assert closed == ["aborts", "store"]
    assert len(asyncio.all_tasks()) == 1

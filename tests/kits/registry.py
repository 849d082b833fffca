"""Entries of a registry, and a watcher that a test steps through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.vllm_server import VllmRecord, VllmStatus
from baton_serve.core.protocol.worker import Role, WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.core.registry.store import Registry
from tests.kits.patience import PATIENCE_S

LONG_MS = 60_000


def worker(worker_id: str, running: int = 0, *, load: WorkerLoad | None = None, **fields: Any) -> WorkerStatus:
    """``fields``: of the record."""
    given: dict[str, Any] = {
        "worker_id": worker_id,
        "engine_id": f"engine-{worker_id}",
        "role": Role.PREFILL,
        "model": "demo",
        "url": "http://127.0.0.1:1",
        "internal_url": "http://127.0.0.1:2",
        "compatibility_hash": "c",
        "max_model_len": 100,
        "block_size": 16,
        "num_blocks": 10,
        "max_num_seqs": 4,
    }
    return WorkerStatus(record=WorkerRecord(**given | fields), load=load or WorkerLoad(running=running))


def vllm_server(server_id: str, running: int = 0, **fields: Any) -> VllmStatus:
    """``fields``: of the record."""
    given: dict[str, Any] = {
        "server_id": server_id,
        "role": Role.PREFILL,
        "model": "demo",
        "url": "http://127.0.0.1:1",
        "version": "0.32.0",
        "side_channel_host": "127.0.0.1",
        "side_channel_port": 5600,
        "max_num_seqs": 4,
        "max_model_len": 100,
        "block_size": 16,
        "num_blocks": 10,
    }
    return VllmStatus(record=VllmRecord(**given | fields), load=WorkerLoad(running=running))


def router(router_id: str, version: int = 0) -> RouterRecord:
    return RouterRecord(router_id=router_id, url=f"http://127.0.0.1:{1 + version}", internal_url="http://127.0.0.1:2")


class Watch:
    """A watcher that a test steps through."""

    def __init__(self, registry: Registry[Any]) -> None:
        self._changes = cast("AsyncGenerator[list[Any], None]", registry.watch())

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._changes.aclose()

    async def next(self) -> list[Any]:
        return await asyncio.wait_for(anext(self._changes), PATIENCE_S)

    async def until(self, expected: list[Any]) -> None:
        while await self.next() != expected:
            pass


async def snapshot(registry: Registry[Any]) -> list[Any]:
    """What a new watcher gets first."""
    async with Watch(registry) as watch:
        return await watch.next()

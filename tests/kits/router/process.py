"""The router as a process of its own, and workers that announce themselves to it in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any, Self

import httpx

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.process.parent_death import die_with_parent
from baton_serve.core.protocol.status import Ready, decode
from baton_serve.core.protocol.worker import WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from tests.kits.patience import PATIENCE_S
from tests.kits.router.cluster import announced
from tests.kits.router.stub_workers import StubWorker

START = """
import json, sys
from baton_serve.router.main import run
from baton_serve.router.settings import RouterSettings
sys.exit(run(RouterSettings.model_validate(json.loads(sys.argv[1]))))
"""


class RouterProcess:
    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process
        self.statuses: list[Any] = []
        self.url = ""

    async def start(self, **settings: Any) -> RouterProcess:
        receive, send = os.pipe()
        arguments = json.dumps({"port": 0, "status_fd": send, "drain_timeout_s": 0, **settings})
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", START, arguments),
            pass_fds=(send,),
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=die_with_parent(),  # a test that failed has not stopped it
        )
        os.close(send)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(receive, "rb")
        )
        async with asyncio.timeout(PATIENCE_S):
            while line := await reader.readline():
                self.statuses.append(decode(line))
                if isinstance(self.statuses[-1], Ready):
                    self.url = self.statuses[-1].url
                    break
        return self

    async def stop(self) -> tuple[int, str]:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)  # send_signal() would poll, and take the exit status away
        _, stderr = await asyncio.wait_for(self.process.communicate(), PATIENCE_S)
        assert self.process.returncode is not None
        return self.process.returncode, stderr.decode()


class Announced:
    """A P and a D that announce themselves in Redis, as workers do."""

    def __init__(self, redis_url: str, key: bytes | None = None) -> None:
        """``key`` signs the announcements."""
        self.has_internal_port = key is not None
        self.store = RedisLeaseStore(redis_url)
        self.registry = RedisRegistry(redis_url, WORKERS, key=key)
        self.p = StubWorker("prefill", store=self.store, name="p")
        self.d = StubWorker("decode", store=self.store, name="d")

    async def __aenter__(self) -> Self:
        await self.p.start()
        await self.d.start()
        await self.announce()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.p.stop()
        await self.d.stop()
        await self.registry.close()
        self.store.close()

    async def announce(self) -> None:
        for worker in (self.p, self.d):
            await self.registry.announce(WorkerStatus(record=self.record(worker), load=WorkerLoad()), 60_000)

    def record(self, worker: StubWorker) -> WorkerRecord:
        return announced(worker, internal_url=worker.url if self.has_internal_port else "").record

    def held(self) -> list[str]:
        return [lease.lease_id for lease in self.store.held(self.p.engine_id) if lease.remaining_ms > 0]


async def until_workers(url: str, count: int) -> None:
    async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(PATIENCE_S):
        while (await client.get("/health")).json()["reachable_workers"] != count:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)

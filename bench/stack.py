"""Redis, workers and routers as processes of their own, for measurements and the screenshot. Logs go to a folder."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from baton.demo import MODEL_DIR
from baton.processes.child import Child, ChildSpec
from baton.processes.embedded_redis import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from core.protocol.status import Ready

STOP_TIMEOUT_S = 10.0
#: Seconds until a router has heard of all workers.
MEET_TIMEOUT_S = 30.0
MODEL = "baton-demo"

#: Flags of a command; a name without the leading dashes.
Flags = dict[str, Any]


class Stack:
    """``async with Stack(...) as stack``. ``prefill`` and ``decode`` are the flags of each such worker."""

    def __init__(self, prefill: list[Flags], decode: list[Flags]) -> None:
        self._flags = [{"role": "prefill", **flags} for flags in prefill] + [{"role": "decode", **f} for f in decode]
        #: Public URLs by role, once started.
        self.urls: dict[str, list[str]] = {"prefill": [], "decode": []}
        self.http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        self._exit = AsyncExitStack()
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def _start(self) -> None:
        self._folder = Path(self._exit.enter_context(TemporaryDirectory(prefix="baton-bench-")))
        self._redis = self._exit.enter_context(EmbeddedRedis())
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = await self._exit.enter_async_context(httpx.AsyncClient(timeout=120, limits=limits))
        started = await asyncio.gather(
            *(self._exit.enter_async_context(self._process(f"worker-{i}", "worker", {**_WORKER, **flags}))
              for i, flags in enumerate(self._flags))
        )  # fmt: skip
        for flags, ready in zip(self._flags, started, strict=True):
            self.urls[flags["role"]].append(ready.url)

    @asynccontextmanager
    async def router(self, name: str = "router", **flags: Any) -> AsyncIterator[str]:
        """A router that knows all workers; its URL. Raises ChildDiedError, TimeoutError."""
        given = {flag.replace("_", "-"): value for flag, value in flags.items()}
        async with self._process(name, "router", {"port": 0, **given}) as ready:
            async with asyncio.timeout(MEET_TIMEOUT_S):
                while await self._num_known(ready.url) < len(self._flags):  # noqa: ASYNC110 (another process hears it)
                    await asyncio.sleep(0.05)
            yield ready.url

    async def _num_known(self, url: str) -> int:
        return len((await self.http.get(f"{url}/admin/workers")).json()["workers"])

    @asynccontextmanager
    async def _process(self, name: str, verb: str, flags: Flags) -> AsyncIterator[Ready]:
        argv = [sys.executable, "-m", "baton", verb]
        for flag, value in {"redis-url": self._redis.url, **flags}.items():
            argv += [f"--{flag}", str(value)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
        child = Child(ChildSpec(name, tuple(argv), environ), self._folder / f"{name}.log", lambda *_: None)
        try:
            await child.start()
            yield await child.ready()
        finally:
            await child.stop(STOP_TIMEOUT_S)

    async def counters(self, role: str) -> Mapping[str, float]:
        """The workers' own counters and gauges without labels, added up over a role."""
        total: dict[str, float] = {}
        for url in self.urls[role]:
            for family in text_string_to_metric_families((await self.http.get(f"{url}/metrics")).text):
                for sample in family.samples:
                    if not sample.labels:
                        total[sample.name] = total.get(sample.name, 0.0) + sample.value
        return total


_WORKER: Flags = {
    "model": MODEL_DIR,
    "served-model-name": MODEL,
    "torch-threads": 1,
    "dtype": "float32",
    "port": 0,
    "internal-port": 0,
}

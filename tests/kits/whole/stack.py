"""A whole Baton as a user runs it: Redis, workers and routers as processes of their own, on ports of their own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from baton_serve.baton.cluster.cluster import DEMO_WORKER, Cluster
from baton_serve.baton.cluster.process import ROUTER, Process, ProcessSpec
from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.demo import MODEL_NAME as MODEL
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis

IDLE_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 0.001
STOP_TIMEOUT_S = 10.0


@dataclass
class Stack:
    """``async with Stack(tmp_path) as stack``. Flags are given as ``{"num-blocks": 64}``; True is a bare flag."""

    folder: Path
    prefill: int = 1
    decode: int = 1
    both: int = 0
    model: Path = MODEL_DIR
    worker_flags: dict[str, Any] = field(default_factory=dict)
    prefill_flags: dict[str, Any] = field(default_factory=dict)
    decode_flags: dict[str, Any] = field(default_factory=dict)
    router_flags: dict[str, Any] = field(default_factory=dict)
    #: More workers, by name, with all their flags.
    named: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Variables for the workers.
    worker_environ: dict[str, str] = field(default_factory=dict)
    #: The first of them is ``router``.
    num_routers: int = 1
    with_router: bool = True

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(httpx.AsyncClient(timeout=120, limits=httpx.Limits()))
            self.cluster = Cluster(self.folder, self._specs(), stop_timeout_s=STOP_TIMEOUT_S)
            await stack.enter_async_context(self.cluster)
            self._exit = stack.pop_all()
        processes = self.cluster.processes
        #: By name.
        self.workers = {name: processes[name] for name in self.cluster.specs if name not in self._router_names}
        self.routers = [processes[name] for name in self._router_names]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    @property
    def _router_names(self) -> list[str]:
        return ["router", *(f"router-{i}" for i in range(1, self.num_routers))] if self.with_router else []

    def _specs(self) -> dict[str, ProcessSpec]:
        roles = [("prefill", self.prefill, self.prefill_flags), ("decode", self.decode, self.decode_flags)]
        wanted = [(role, i, flags) for role, n, flags in [*roles, ("both", self.both, {})] for i in range(n)]
        flags_of = {f"{role}-{i}": {"role": role, **flags} for role, i, flags in wanted} | self.named
        routers = dict.fromkeys(self._router_names, ProcessSpec(ROUTER, {"port": 0, **self.router_flags}))
        return {name: self._worker_spec(flags) for name, flags in flags_of.items()} | routers

    def _worker_spec(self, flags: dict[str, Any]) -> ProcessSpec:
        own = {**self.worker_flags, **flags}
        size = {} if "num-blocks" in own else {"kv-cache-bytes": 2**27}
        role = own.pop("role")
        return ProcessSpec(role, {**DEMO_WORKER, "model": self.model, **size, **own}, self.worker_environ)

    @property
    def router(self) -> Process:
        """The first one."""
        return self.routers[0]

    @property
    def router_urls(self) -> list[str]:
        """Where clients reach each router."""
        return [router.url for router in self.routers]

    @property
    def redis(self) -> EmbeddedRedis:
        """The Redis of all processes."""
        return self.cluster.redis

    async def start_worker(self, name: str, flags: dict[str, Any]) -> Process:
        """One more worker while everything runs; returns when it is ready, which the router hears a moment later."""
        self.workers[name] = process = await self.cluster.add(name, self._worker_spec(flags))
        return process

    async def stop_worker(self, name: str) -> None:
        """SIGTERM: it drains and leaves, and must have left by itself."""
        del self.workers[name]
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await self.cluster.remove(name)

    async def start_router(self, name: str, flags: dict[str, Any]) -> Process:
        """One more router, which is not among ``routers``; returns when it reaches all workers."""
        return await self.cluster.add(name, ProcessSpec(ROUTER, {"port": 0, **flags}), num_workers=len(self.workers))

    async def routable(self, num_workers: int) -> None:
        """Wait until every router reaches so many workers."""
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            for name in self._router_names:
                await self.cluster.routable(name, num_workers)

    async def end_router(self, index: int, number: signal.Signals) -> str:
        """By this signal; returns how it ended, when the process is no more."""
        self.cluster.signal(self._router_names[index], number)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            return await self.routers[index].child.ended()

    def ranks(self, worker: str) -> list[int]:
        """The process ids of a worker's ranks, in order of rank."""
        return self.cluster.ranks(worker)

    # --- asking ------------------------------------------------------------------------------------------------

    async def post(self, path: str, *, url: str | None = None, **body: Any) -> httpx.Response:
        """The answer to one request, of this router (the first one) or worker. Raises for a status that is not 200."""
        answer = await self.http.post(f"{url or self.router.url}{path}", json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        return answer

    async def complete(
        self, prompt: str | list[Any], *, url: str | None = None, temperature: float = 0, **more: Any
    ) -> dict[str, Any]:
        """One non-streamed completion; returns the body. Raises for a status that is not 200."""
        answer = await self.post("/v1/completions", url=url, prompt=prompt, temperature=temperature, **more)
        body: dict[str, Any] = answer.json()
        return body

    async def tokens(self, prompt: list[int], **more: Any) -> list[int]:
        """The sampled token ids of one completion."""
        body = await self.complete(prompt, return_token_ids=True, ignore_eos=True, **more)
        tokens: list[int] = body["choices"][0]["token_ids"]
        return tokens

    async def prefill_at(self, worker: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        """What the router would send to P; returns P's ``kv_transfer_params``."""
        params = {"kv_transfer_params": {"do_remote_decode": True}}
        url = self.workers[worker].url
        body = await self.complete(prompt, url=url, max_tokens=1, ignore_eos=True, **params, **more)
        answer: dict[str, Any] = body["kv_transfer_params"]
        return answer

    async def decode_at(
        self, worker: str, prompt: list[int], params: dict[str, Any], max_tokens: int, **more: Any
    ) -> list[int]:
        """What the router would send to D; returns all tokens, P's first one included."""
        wanted = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
        body = await self.complete(prompt, url=self.workers[worker].url, kv_transfer_params=params, **wanted, **more)
        tokens: list[int] = body["choices"][0]["token_ids"]
        return tokens

    async def state(self, worker: str) -> dict[str, Any]:
        """The block ledger of a worker, which must balance."""
        body = await self.cluster.state(worker)
        assert body["ledger"] == "ok", body
        blocks: dict[str, Any] = body["blocks"]
        return blocks

    async def metric(self, process: str, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there is none. ``process`` may be a URL."""
        if "://" in process:
            process = next(one for one, its in self.cluster.processes.items() if its.url == process)
        samples = await self.cluster.metrics(process)
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    async def known_workers(self, url: str | None = None) -> list[dict[str, Any]]:
        """The workers that this router (the first one) lists."""
        rows: list[dict[str, Any]] = (await self.http.get(f"{url or self.router.url}/admin/workers")).json()["workers"]
        return rows

    async def requests(self, url: str | None = None) -> list[dict[str, Any]]:
        """What this router (the first one) lists."""
        rows: list[dict[str, Any]] = (await self.http.get(f"{url or self.router.url}/admin/requests")).json()[
            "requests"
        ]
        return rows

    async def until_state(self, *states: str, count: int = 1) -> dict[str, Any]:
        """Wait until the router shows ``count`` requests in one of these states; returns the first one's row."""
        found: list[dict[str, Any]] = []

        async def shown() -> bool:
            found[:] = [row for row in await self.requests() if row["state"] in states]
            return len(found) >= count

        await eventually(shown)
        return found[0]

    async def until_gone(self, request_id: str | None = None) -> None:
        """Wait until the router has forgotten this request, or all of them."""

        async def gone() -> bool:
            ids = {row["id"] for row in await self.requests()}
            return not ids if request_id is None else request_id not in ids

        await eventually(gone)

    async def until_idle(self, *workers: str) -> None:
        """Wait until no block of these workers (default: all) is leased or pinned."""
        for worker in workers or self.workers:

            async def idle(worker: str = worker) -> bool:
                state = await self.state(worker)
                assert state["free"] + state["cached"] + state["pinned"] + state["leased"] == state["total"], state
                return bool(state["pinned"] == state["leased"] == state["leases"] == 0)

            await eventually(idle)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; TimeoutError when it never is."""
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        while not await check():  # noqa: ASYNC110 (another process is asked: it has no event for us)
            await asyncio.sleep(CHECK_INTERVAL_S)

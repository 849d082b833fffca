"""A whole Baton as a user runs it: Redis, workers and routers as processes of their own, on ports of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from baton.demo import MODEL_DIR
from baton.processes.child import Child, ChildSpec
from baton.processes.embedded_redis import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

IDLE_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 0.001
MODEL = "baton-demo"


@dataclass
class Process:
    """One running child and where it listens."""

    child: Child
    url: str
    internal_url: str

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid


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
        self.redis = EmbeddedRedis()
        self.redis.start()
        self._exit.callback(self.redis.stop)
        self.http = await self._exit.enter_async_context(httpx.AsyncClient(timeout=120, limits=httpx.Limits()))
        roles = [("prefill", self.prefill, self.prefill_flags), ("decode", self.decode, self.decode_flags)]
        wanted = [(role, i, flags) for role, n, flags in [*roles, ("both", self.both, {})] for i in range(n)]
        flags_of = {f"{role}-{i}": {"role": role, **flags} for role, i, flags in wanted} | self.named
        started = await asyncio.gather(
            *(self._worker(name, {**self.worker_flags, **flags}) for name, flags in flags_of.items())
        )
        self.workers = dict(zip(flags_of, started, strict=True))
        if self.with_router:
            names = ["router", *(f"router-{i}" for i in range(1, self.num_routers))]
            flags = {"port": 0, **self.router_flags}
            self.routers = list(await asyncio.gather(*(self._run(name, "router", flags) for name in names)))
            self.router = self.routers[0]
            await self._routable(len(started))

    async def start_worker(self, name: str, flags: dict[str, Any]) -> Process:
        """One more worker while everything runs; returns when it is ready, which the router hears a moment later."""
        self.workers[name] = process = await self._worker(name, {**self.worker_flags, **flags})
        return process

    async def stop_worker(self, name: str) -> None:
        """SIGTERM: it drains and leaves, and must have left by itself."""
        process = self.workers.pop(name)
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await process.child.ended()

    async def _worker(self, name: str, flags: dict[str, Any]) -> Process:
        defaults = {"model": self.model, "served-model-name": MODEL, "torch-threads": 1, "kv-cache-bytes": 2**27}
        if "num-blocks" in flags:
            del defaults["kv-cache-bytes"]
        return await self._run(name, "worker", {**defaults, **flags}, self.worker_environ)

    async def _run(
        self, name: str, verb: str, flags: dict[str, Any], more_environ: dict[str, str] | None = None
    ) -> Process:
        argv = [sys.executable, "-m", "baton", verb]
        for flag, value in {"redis-url": self.redis.url, **flags}.items():
            argv += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")} | (more_environ or {})
        child = Child(ChildSpec(name, tuple(argv), environ), self.folder / f"{name}.log", lambda *_: None)
        await child.start()
        self._exit.push_async_callback(child.stop, 10.0)
        ready = await child.ready()
        return Process(child, ready.url, ready.internal_url)

    async def _routable(self, num_workers: int) -> None:
        """The registry tells the router about the workers within one announcement; wait for that."""

        async def all_known() -> bool:
            bodies = [(await self.http.get(f"{url}/admin/workers")).json() for url in self.router_urls]
            return all(len(body["workers"]) >= num_workers for body in bodies)

        await eventually(all_known)

    @property
    def router_urls(self) -> list[str]:
        """Where clients reach each router."""
        return [router.url for router in self.routers]

    async def kill_router(self, index: int) -> None:
        """SIGKILL; returns when the process is no more."""
        router = self.routers[index]
        os.kill(router.pid, signal.SIGKILL)
        await router.child.ended()

    async def stop_router(self, index: int) -> str:
        """SIGTERM: it lets its requests finish and leaves; returns how it ended."""
        router = self.routers[index]
        os.kill(router.pid, signal.SIGTERM)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            return await router.child.ended()

    def ranks(self, worker: str) -> list[int]:
        """The process ids of a worker's ranks, in order of rank."""
        pid = self.workers[worker].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sorted((int(child) for child in children), key=_rank_of)

    # --- asking ------------------------------------------------------------------------------------------------

    async def complete(self, prompt: str | list[int], *, url: str | None = None, **more: Any) -> dict[str, Any]:
        """One non-streamed completion; returns the body. Raises for a status that is not 200."""
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **more}
        answer = await self.http.post(f"{url or self.router.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert isinstance(body, dict)
        return body

    async def tokens(self, prompt: list[int], **more: Any) -> list[int]:
        """The sampled token ids of one completion."""
        body = await self.complete(prompt, return_token_ids=True, ignore_eos=True, **more)
        tokens = body["choices"][0]["token_ids"]
        assert isinstance(tokens, list)
        return tokens

    async def prefill_at(self, worker: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        """What the router would send to P; returns P's ``kv_transfer_params``."""
        params = {"kv_transfer_params": {"do_remote_decode": True}}
        url = self.workers[worker].url
        body = await self.complete(prompt, url=url, max_tokens=1, ignore_eos=True, **params, **more)
        answer = body["kv_transfer_params"]
        assert isinstance(answer, dict)
        return answer

    async def decode_at(
        self, worker: str, prompt: list[int], params: dict[str, Any], max_tokens: int, **more: Any
    ) -> list[int]:
        """What the router would send to D; returns all tokens, P's first one included."""
        wanted = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
        body = await self.complete(prompt, url=self.workers[worker].url, kv_transfer_params=params, **wanted, **more)
        tokens = body["choices"][0]["token_ids"]
        assert isinstance(tokens, list)
        return tokens

    async def state(self, worker: str) -> dict[str, Any]:
        """The block ledger of a worker, which must balance."""
        body = (await self.http.get(f"{self.workers[worker].internal_url}/internal/state")).json()
        assert body["ledger"] == "ok", body
        blocks = body["blocks"]
        assert isinstance(blocks, dict)
        return blocks

    async def metric(self, process: str, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 when there is none. ``process`` may be a URL."""
        url = process if "://" in process else self._url_of(process)
        text = (await self.http.get(f"{url}/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _url_of(self, process: str) -> str:
        return self.router.url if process == "router" else self.workers[process].url

    async def requests(self, url: str | None = None) -> list[dict[str, Any]]:
        """What this router (the first one) lists."""
        rows = (await self.http.get(f"{url or self.router.url}/admin/requests")).json()["requests"]
        assert isinstance(rows, list)
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


@contextmanager
def stopped(*pids: int) -> Iterator[Callable[[], None]]:
    """The processes stand still (SIGSTOP) until the returned function is called, or the block ends."""

    def go_on() -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


def _rank_of(pid: int) -> int:
    """A rank's number stands in the start parameters on its command line."""
    spec = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2]
    rank = json.loads(spec).get("rank", 0)
    assert isinstance(rank, int)
    return rank


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; TimeoutError when it never is."""
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        while not await check():  # noqa: ASYNC110 (another process is asked: it has no event for us)
            await asyncio.sleep(CHECK_INTERVAL_S)

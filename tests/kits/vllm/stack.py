"""vLLM servers on CPUs, each under a name, and routers in front of them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from baton_serve.baton.cluster.cluster import POLL_S, Cluster
from baton_serve.baton.cluster.process import ROUTER, Process, ProcessSpec, VllmSpec, stopped
from baton_serve.baton.demo import MODEL_DIR, MODEL_NAME
from baton_serve.baton.processes.vllm.connectors import STOCK, Connector
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import find_vllm
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel
from tests.kits import tiny_adapters
from tests.kits.patience import PATIENCE_S

#: Seconds for which P keeps blocks that nobody reads: vLLM's default. With less, leases end by themselves here: where
#: servers share two cores, a process may stand still for seconds, and an idle engine may see only after five seconds
#: that it has work (vLLM's ``SHM_READER_RECHECK_INTERVAL_MS``).
LEASE_DURATION_S = 30
#: Of the LoRA adapter.
RANK = 8
#: A server that is stopped gets time for it: by default vLLM kills its engine at once.
ARGS = (
    "--shutdown-timeout 20 "
    "--max-model-len 4096 --max-num-seqs 16 --block-size 32 --enable-auto-tool-choice --tool-call-parser hermes "
    f"--enable-lora --max-lora-rank {RANK}"
)
#: The router's metric of what became of leases; renewals have an ``event`` of their own.
RENEWALS = "baton_router_vllm_leases_total"
#: The name of the LoRA adapter.
ADAPTER = "baton-lora"
MODEL = MODEL_NAME
ROLES = {"p1": "prefill", "p2": "prefill", "d1": "decode", "d2": "decode"}


@dataclass(frozen=True)
class Router:
    """A router in front of some of the servers."""

    name: str
    url: str
    process: Process


class VllmStack:
    """Two P and two D, started when a test first needs them, at the same time if it needs several.

    A server that a test has killed is started again by the next test that needs it. One that a test does not need is
    killed: also an idle one has threads that wake up all the time, and there may be two cores for all.
    """

    def __init__(
        self,
        cluster: Cluster,
        http: httpx.AsyncClient,
        ports: HeldPorts,
        vllm: str,
        adapter: Path,
        connector: Connector,
        lease_duration_s: int,
        *,
        announces: bool,
    ) -> None:
        self.cluster = cluster
        #: Waits for answers as long as they take.
        self.http = http
        program = find_vllm(vllm)
        args = ExtraArgs(f"{ARGS} --lora-modules {ADAPTER}={shlex.quote(str(adapter))}")
        model = VllmModel(str(MODEL_DIR), lease_duration_s, MODEL, args, connector, announces)
        share = ServerShare(threads=1, cpu_cache_gib=1)
        self._specs = {
            name: VllmSpec(role, program, model, ServerPlace(ports.take(), ports.take(), ports.take()), share)
            for name, role in ROLES.items()
        }
        self._lease_duration_s = lease_duration_s
        self._num_routers = 0

    async def need(self, *names: str) -> None:
        """Have these servers serve, and no others."""
        await asyncio.gather(*(self.kill(name) for name in self.names if name not in names and self._runs(name)))
        await asyncio.gather(*(self.start(name) for name in names if not self._runs(name)))

    async def start(self, name: str) -> None:
        """Start a server that does not run; returns when it serves."""
        await self.cluster.add(name, self._specs[name])

    async def stop(self, name: str) -> None:
        """Have a server end by itself."""
        await self.cluster.remove(name)

    async def kill(self, name: str) -> None:
        """Kill a server or a router, all its processes at once; returns when it has ended."""
        self.cluster.kill(name)
        await self.cluster.ended(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all servers, whether they run or not."""
        return tuple(self._specs)

    def paused(self, *names: str) -> AbstractContextManager[object]:
        """Stop the engines of servers, whose HTTP ports go on to answer: requests make no progress meanwhile."""
        return stopped(*(pid for name in names for pid in self.cluster.ranks(name)))

    def url(self, name: str) -> str:
        """The base URL of a server."""
        return self._specs[name].place.url

    def address(self, name: str, max_num_seqs: int = 16) -> str:
        """A server's address for routers. With a low ``max_num_seqs`` the router sends it no more at once."""
        return self._specs[name].place.router_address(max_num_seqs)

    @asynccontextmanager
    async def router(self, prefill: Sequence[str], decode: Sequence[str], **flags: Any) -> AsyncIterator[Router]:
        """A router that is given the servers at these addresses, all of which serve."""
        self._num_routers += 1
        name = f"router-{self._num_routers}"
        lease = {"vllm-lease-duration-s": self._lease_duration_s}
        lists = {"redis-url": "", "prefill": ",".join(prefill), "decode": ",".join(decode)}
        given = {key.replace("_", "-"): value for key, value in flags.items()}
        spec = ProcessSpec(ROUTER, {"port": 0, **lists, **lease, **given})
        process = await self.cluster.add(name, spec, num_workers=len({*prefill, *decode}))
        router = Router(name, process.url, process)
        try:
            await self.until(lambda: self._knows_the_model(router), "the router knows the model")
            yield router
        finally:
            self.cluster.kill(name)
            await self.cluster.ended(name)

    async def metric(self, name: str, metric: str) -> float:
        """The sum of a metric's samples at a server or router; 0 where there is none."""
        return sum(sample.value for sample in await self.cluster.metrics(name) if sample.name == metric)

    async def cache_usage(self, name: str) -> float:
        """The part of a server's KV blocks that requests and leases hold, from 0 to 1."""
        return await self.metric(name, "vllm:kv_cache_usage_perc")

    async def until(self, check: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the coroutine that ``check`` makes returns true. vLLM and routers notify nobody of such things."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if await check():
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:g} s: {what}") from None

    async def until_free(self, *names: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until nothing holds blocks of these servers."""
        for name in names:
            await self.until(lambda name=name: self._is_free(name), f"{name} has all its blocks", timeout_s)

    async def until_holds(self, name: str) -> None:
        """Wait until a server says that it keeps blocks. Its engine steps, and says so, as long as it has leases."""
        await self.until(lambda: self._is_used(name), f"{name} keeps blocks")

    async def requests(self, router: Router) -> list[dict[str, Any]]:
        """The requests that the router knows."""
        return await self.cluster.requests(router.name)

    async def until_held(self, router: Router, number: int = 1) -> None:
        """Wait until the router holds this many requests between P and D."""
        await self.until(lambda: self._num_held(router, number), f"{number} requests are held")

    async def until_renewed(self, router: Router) -> None:
        """Wait until the router has renewed a lease: a router that has just started connects to a P first."""
        await self.until(lambda: self._has_renewed(router), "a lease is renewed")

    async def _has_renewed(self, router: Router) -> bool:
        samples = await self.cluster.metrics(router.name)
        return any(one.name == RENEWALS and one.labels["event"] == "renewal_sent" and one.value > 0 for one in samples)

    async def _num_held(self, router: Router, number: int) -> bool:
        return sum(row["state"] == "held" for row in await self.requests(router)) >= number

    async def _is_free(self, name: str) -> bool:
        return await self.cache_usage(name) == 0

    async def _is_used(self, name: str) -> bool:
        return await self.cache_usage(name) > 0

    async def _knows_the_model(self, router: Router) -> bool:
        models = (await self.http.get(f"{router.url}/v1/models")).json()
        return any(model["id"] == MODEL for model in models.get("data", []))

    def _runs(self, name: str) -> bool:
        process = self.cluster.processes.get(name)
        return process is not None and process.up


@asynccontextmanager
async def vllm_stack(
    folder: Path,
    vllm: str,
    connector: Connector = STOCK,
    lease_duration_s: int = LEASE_DURATION_S,
    *,
    announces: bool = False,
) -> AsyncIterator[VllmStack]:
    """The servers of one test run. They are killed at its end: nothing of theirs is worth saving."""
    with HeldPorts() as ports:
        async with Cluster(folder, {}) as cluster, httpx.AsyncClient(timeout=None, trust_env=False) as http:
            targets = ["q_proj", "v_proj"]
            adapter = tiny_adapters.build(folder / "adapter", MODEL_DIR, seed=7, r=RANK, target_modules=targets)
            yield VllmStack(cluster, http, ports, vllm, adapter, connector, lease_duration_s, announces=announces)

"""The processes of the benchmark: Redis and a router as ``baton`` starts them, stub engines, and clients."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

import msgspec

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.cluster.process import ROUTER, Flags, ProcessSpec
from baton_serve.core.net.served.config import raise_descriptor_limit
from baton_serve.core.process.descendants import descendants_of
from bench.held.stubs.clients import ClientsSpec, ClientsStats
from bench.held.stubs.decode import DecodeSpec, DecodeStats
from bench.held.stubs.prefill import PrefillSpec, PrefillStats

STOP_TIMEOUT_S = 5.0
#: Connections of one process, where the system allows more descriptors than that.
MOST_CONNECTIONS = 50_000
#: Descriptors for all else, and for processes of one port being given more connections than others.
OTHER_DESCRIPTORS = 2_000
StatsT = TypeVar("StatsT", bound=msgspec.Struct)


class Talker(Generic[StatsT]):
    """A process that answers a line with a line."""

    def __init__(self, process: asyncio.subprocess.Process, kind: type[StatsT]) -> None:
        self._process = process
        self._kind = kind

    async def ask(self, line: str = "stats") -> StatsT:
        """Have it do what the line says. Raises EOFError if it has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        answer = await self._process.stdout.readline()
        if not answer:
            raise EOFError("a process of the benchmark has ended; its last words are above")
        return msgspec.json.decode(answer, type=self._kind)


class Stage:
    """All processes, which run."""

    def __init__(
        self,
        cluster: Cluster,
        prefill: Talker[PrefillStats],
        decode: list[Talker[DecodeStats]],
        clients: list[Talker[ClientsStats]],
    ) -> None:
        self.cluster = cluster
        self.prefill = prefill
        self._decode = decode
        self._clients = clients

    @property
    def router_pids(self) -> list[int]:
        """The router's processes."""
        pid = self.cluster.processes["router"].pid
        return [pid, *descendants_of(pid)]

    @property
    def redis_pid(self) -> int:
        """Redis's process."""
        return self.cluster.redis.pid

    async def send(self, num: int, pending: int) -> None:
        """Have clients send so many requests, with at most ``pending`` at once that have no first token."""
        share = len(self._clients)
        for number, client in enumerate(self._clients):
            await client.ask(f"send {(num + number) // share} {max(1, pending // share)}")

    async def answered(self) -> ClientsStats:
        """What all clients have got."""
        total = ClientsStats()
        for client in self._clients:
            total.add(await client.ask())
        return total

    async def decode(self, line: str = "stats") -> int:
        """Have all decode engines do what the line says; returns how many requests they have decoded."""
        return sum([(await talker.ask(line)).num_decodes for talker in self._decode])


def num_processes(num_connections: int) -> int:
    """How many processes it takes to have so many connections, as each may have so many descriptors here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard - OTHER_DESCRIPTORS, MOST_CONNECTIONS)
    return -(-num_connections // most)


@asynccontextmanager
async def stage(
    prefill: PrefillSpec, decode: DecodeSpec, num_clients: int, prompt_bytes: int, flags: Flags
) -> AsyncIterator[Stage]:
    """Start everything; ``redis_url`` of the engines, and ``reads_port``, are filled in. Raises ChildDiedError.

    Clients and decode engines run in as many processes as their connections need, each of which has a share of them.
    """
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="baton-held-")))
        cluster = await stack.enter_async_context(Cluster(folder, {}, stop_timeout_s=STOP_TIMEOUT_S))
        url, replace = cluster.redis.url, msgspec.structs.replace
        enter = stack.enter_async_context
        prefill_process = await enter(_talker("prefill", replace(prefill, redis_url=url), PrefillStats))
        decode = replace(decode, redis_url=url, reads_port=(await prefill_process.ask()).reads_port)
        num, decode_processes = num_processes(num_clients), []
        for number in range(num):
            share = replace(decode, num_engines=(decode.num_engines + number) // num)
            decode_processes.append(await enter(_talker("decode", share, DecodeStats)))
        num_workers = prefill.num_engines + decode.num_engines
        router = await cluster.add("router", ProcessSpec(ROUTER, {"port": 0, **flags}), num_workers=num_workers)
        port, clients = int(router.url.rpartition(":")[2]), []
        for number in range(num):
            client_spec = ClientsSpec(port, prompt_bytes, number)
            clients.append(await enter(_talker("clients", client_spec, ClientsStats)))
        yield Stage(cluster, prefill_process, decode_processes, clients)


@asynccontextmanager
async def _talker(module: str, spec: msgspec.Struct, kind: type[StatsT]) -> AsyncIterator[Talker[StatsT]]:
    pipe = asyncio.subprocess.PIPE
    argument = msgspec.json.encode(spec).decode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"bench.held.stubs.{module}", argument, stdin=pipe, stdout=pipe
    )
    talker = Talker(process, kind)
    try:
        await talker.ask()
        yield talker
    finally:
        process.kill()
        await process.wait()

"""A real router on a real port, in front of scripted workers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from baton_serve.core.leases.memory_store import MemoryLeaseStore
from baton_serve.core.leases.store import LeaseState, LeaseStore
from baton_serve.core.net.sockets import base_url, listen, port_of
from baton_serve.core.net.tls import own_certificate_context
from baton_serve.core.protocol.request_ids import new_router_id
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.worker import AdapterRecord, Role, WorkerLoad, WorkerStatus
from baton_serve.router.admin import LocalRouter
from baton_serve.router.apps.collector import RouterCollector
from baton_serve.router.apps.internal import internal_app
from baton_serve.router.apps.public import create_app
from baton_serve.router.build import build_router
from baton_serve.router.dashboard.live import LiveSnapshots
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.share import local_share
from baton_serve.router.edge.tls import load_tls
from baton_serve.router.engines.port import Engines
from baton_serve.router.front.server import RouterServer
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool.health import HealthProbes
from baton_serve.router.request.ended import EndedRequest
from baton_serve.router.settings import RouterSettings
from tests.kits.patience import eventually as eventually  # tests of a cluster have it from here
from tests.kits.registry import worker as worker_status
from tests.kits.router.stub_workers import Raw, StreamThen, StubWorker

if TYPE_CHECKING:
    from fastapi import FastAPI


class DirectLeases:
    """The ``LeaseRenewer`` port straight on a store, without threads; remembers what was asked of it."""

    def __init__(self, store: LeaseStore) -> None:
        self.store = store
        self.tracked: dict[str, Callable[[LeaseState], None]] = {}
        #: The store answers; else nothing is known of any lease.
        self.answers = True
        self.released: list[str] = []
        self.untracked: list[str] = []
        self.on_unsent: list[Callable[[str, Sequence[str]], None]] = []

    def track(self, engine_id: str, lease_id: str, on_over: Callable[[LeaseState], None]) -> None:
        self.tracked[lease_id] = on_over

    def tracks(self, engine_id: str, lease_id: str) -> bool:
        return lease_id in self.tracked

    def untrack(self, engine_id: str, lease_id: str) -> None:
        self.tracked.pop(lease_id, None)
        self.untracked.append(lease_id)

    def release(self, engine_id: str, lease_id: str) -> None:
        self.tracked.pop(lease_id, None)
        self.released.append(lease_id)
        self.store.release(engine_id, [lease_id])

    def released_by_engine(self, engine_id: str, lease_ids: Sequence[str]) -> None:
        self.released += lease_ids

    def remaining_ms(self, engine_id: str, lease_id: str) -> int | None:
        return 4321 if lease_id in self.tracked and self.answers else None

    def __len__(self) -> int:
        return len(self.tracked)

    def counters(self) -> dict[str, int]:
        return {"released": len(self.released)}


class SwitchedPeers:
    """The other routers: ``now``, which a test may change."""

    def __init__(self) -> None:
        self.now = PeerRouters(RouterRecord(router_id=new_router_id(), url="", internal_url=""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def __iter__(self) -> Iterator[RouterRecord]:
        return iter(self.now)


def announced(worker: StubWorker, **fields: Any) -> WorkerStatus:
    """What a worker would announce. ``fields``: others of the record."""
    about = {"engine_id": worker.engine_id, "role": Role(worker.role), "model": worker.model, "url": worker.url}
    return worker_status(worker.name, **about, **fields)


class Cluster:
    """Workers and a router in front of them."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.store = MemoryLeaseStore()
        self.leases = DirectLeases(self.store)
        self.tls = load_tls(settings)
        self._peers: Any = SwitchedPeers()
        self.router = router = build_router(settings, self.leases, self._peers, self.tls.internal)
        self.router_id = self._peers.router_id
        self.pool, self.lost = router.workers.pool, router.workers.lost
        self.upstream, self.lease_limit = router.workers.upstream, router.workers.lease_limit
        self.internal_calls = router.workers.calls
        self.active, self.queues = router.requests.active, router.requests.queues
        self.ended_requests, self.metrics = router.requests.ended, router.requests.metrics
        self.prefill_aborts, self.direct_releases = router.leases.prefill_aborts, router.leases.direct_releases
        self.missing_engines = router.leases.missing_engines
        self.cleanup, self.body_budget = router.routers.cleanup, router.intake.body_budget
        self.legs = router.intake.runner._legs
        self.retry_budget = self.legs.retry_budget
        self.workers: list[StubWorker] = []
        self._num_added = 0
        #: Of leases that several choices read: how many, and which have.
        self.readers: dict[str, tuple[int, set[int]]] = {}
        self.limits: dict[str, int] = {}
        #: Compatibility hashes, by worker.
        self.hashes: dict[str, str] = {}
        self.weights: dict[str, str] = {}
        #: Fingerprints of adapters by name, by worker.
        self.adapters: dict[str, dict[str, str]] = {}
        self.here = LocalRouter(router.workers, router.requests, self.leases, self.router_id)
        self.recorder = HistoryRecorder(router.requests)
        self.numbers = RouterCollector(
            router.workers, router.requests, router.leases, router.vllm_leases.counters, self.cleanup
        )
        self.front = create_app(
            settings,
            router.workers,
            router.requests,
            self._peers,
            router.intake,
            self.here,
            self.numbers,
            self.store,
            self.recorder,
        )
        self.server = RouterServer(self.front, settings, self.active, router.intake.late_writes, tls=self.tls.public)
        self.probes = HealthProbes(self.upstream, self.pool)
        self.url = ""
        self.client: httpx.AsyncClient
        #: Of the connections that tests have opened.
        self._readers: list[asyncio.StreamReader] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def add(
        self,
        role: str,
        *,
        ours: bool = True,
        limit: int = 8,
        model: str = "m",
        digest: str = "hash",
        weights: str = "w",
        adapters: dict[str, str] | None = None,
        name: str = "",
    ) -> StubWorker:
        """A new worker, announced as the registry would. Those of one ``digest`` can read from each other, those of one
        ``weights`` can go on for each other. ``adapters``: fingerprints by name.
        """
        name = name or f"{role[0]}{self._num_added}"
        self._num_added += 1
        worker = StubWorker(role, ours=ours, store=self.store, name=name, readers=self.readers)
        worker.model = model
        await worker.start(tls=None if self.tls.internal is None else self.tls.internal.server(internal=True))
        self.workers.append(worker)
        self.limits[worker.name] = limit
        self.hashes[worker.name] = digest if ours else ""
        self.weights[worker.name] = weights if ours else ""
        self.adapters[worker.name] = adapters or {}
        self.announce()
        return worker

    async def fleet(self, *roles: str, **more: Any) -> list[StubWorker]:
        """New workers of these roles, otherwise alike."""
        return [await self.add(role, **more) for role in roles]

    def announce(self, **loads: WorkerLoad) -> None:
        """What the registry would say now, with these loads."""
        known = [worker for worker in self.workers if worker.name in self.limits]
        self.pool.apply([self._status(worker, loads.get(worker.name)) for worker in known])

    def _status(self, worker: StubWorker, load: WorkerLoad | None = None) -> WorkerStatus:
        # The pool doubles what a prefill worker reports, so that it never waits; tests count places.
        return announced(
            worker,
            internal_url=worker.url if worker.ours else "",
            compatibility_hash=self.hashes[worker.name],
            weights_fingerprint=self.weights.get(worker.name, ""),
            max_model_len=1000,
            max_num_seqs=self.limits[worker.name],
            adapters=tuple(
                AdapterRecord(name=name, root=f"/adapters/{name}", fingerprint=fingerprint)
                for name, fingerprint in self.adapters.get(worker.name, {}).items()
            ),
            load=load,
        )

    @property
    def peers(self) -> PeerRouters:
        """The other routers."""
        peers: PeerRouters = self._peers.now
        return peers

    @peers.setter
    def peers(self, peers: PeerRouters) -> None:
        self._peers.now = peers

    def use_engines(self, engines: Engines) -> None:
        """Have others speak for the workers."""
        self.legs.engines = self.router.intake.records.engines = engines

    def snapshots(self, recorder: HistoryRecorder | None = None) -> LiveSnapshots:
        """What the dashboard shows. ``recorder``: by default the router's own."""
        recorder = recorder or self.recorder
        own = partial(local_share, self.router.workers, self.router.requests, recorder)
        return LiveSnapshots(own, self._peers, recorder, self.settings.lease_duration_ms)

    def internal(self) -> FastAPI:
        """What other routers ask it."""
        return internal_app(self.router.workers, self.router.requests, self.here, self.numbers, self.recorder)

    async def start(self) -> None:
        sock = listen("127.0.0.1", 0)
        self.url = base_url("127.0.0.1", port_of(sock), tls=self.tls.public is not None)
        ready = asyncio.Event()
        self.server._on_ready = ready.set
        self._serving = asyncio.create_task(self.server.serve(sockets=[sock]))
        await ready.wait()
        self.client = httpx.AsyncClient(base_url=self.url, timeout=20, verify=self._trust())

    def _trust(self) -> ssl.SSLContext | bool:
        certificate = self.settings.tls_certificate_file
        return certificate is None or own_certificate_context(certificate)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await self.client.aclose()
        self.server.stop()
        self.server.stop()
        await self._serving
        await self.probes.close()
        await self.prefill_aborts.close()
        await self.direct_releases.close()
        await self.missing_engines.close()
        await self.cleanup.close()
        await self.upstream.close()
        for worker in self.workers:
            await worker.stop()

    # --- for tests

    async def post(self, body: dict[str, Any], path: str = "/v1/chat/completions", **kwargs: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **kwargs)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a client, for bytes. It ends with the router at the latest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        self._writers.append(writer)
        return reader, writer

    async def open(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> asyncio.StreamWriter:
        """Send a request on a connection of its own and do not read; closing the writer is the client leaving."""
        reader, writer = await self.connect()
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        await writer.drain()
        self._readers.append(reader)
        return writer

    async def streamed(
        self, body: dict[str, Any], *acts: StreamThen | Raw, after: str, path: str = "/v1/chat/completions"
    ) -> str:
        """The text of a stream. Once the client has been sent ``after``, the acts go on."""
        text = ""
        async with self.client.stream("POST", path, json=body) as response:
            async for part in response.aiter_text():
                text += part
                if after in text:
                    for act in acts:
                        act.go.set()
        return text

    def ended(self) -> list[EndedRequest]:
        """The requests that are over, the newest first."""
        return self.ended_requests.newest(asyncio.get_running_loop().time())

    async def until_state(self, state: str, count: int = 1) -> None:
        await eventually(lambda: {str(k): v for k, v in self.active.count().items()}[state] == count, state)

    def check_idle(self) -> None:
        """The ledger: nothing is left anywhere, and no request ended in a bug of the router's."""
        assert not any(reason == "internal_error" for _, reason in self.metrics.outcomes)
        assert len(self.active) == 0
        assert [worker.usage.in_flight for worker in self.pool] == [0] * len(self.pool)
        assert len(self.queues.prefill) == len(self.queues.held) == 0
        assert self.leases.tracked == {}
        for worker in self.workers:
            assert self.store.held(worker.engine_id) == [] or all(
                lease.remaining_ms == 0 for lease in self.store.held(worker.engine_id)
            )

    def is_idle(self) -> bool:
        """Whether ``check_idle`` finds nothing: what was given up is told to P, which takes a moment."""
        try:
            self.check_idle()
        except AssertionError:
            return False
        return True


def chat(**kwargs: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **kwargs}


def body_for(path: str, **kwargs: Any) -> dict[str, Any]:
    """A chat, or a completion."""
    return chat(**kwargs) if "chat" in path else {"model": "m", "prompt": "hi", "max_tokens": 4, **kwargs}


def events(text: str) -> list[Any]:
    """The events of a stream, parsed; ``[DONE]`` as it is."""
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def spoken(text: str) -> str:
    """The text of a chat or completion stream."""
    said = ""
    for event in events(text):
        if event != "[DONE]":
            for choice in event.get("choices", []):
                said += choice.get("text", "") or choice.get("delta", {}).get("content", "") or ""
    return said


def make_settings(**kwargs: Any) -> RouterSettings:
    """The settings. Where ``kwargs`` names one of their constants, it has another value than it has for people."""
    constants = {name: kwargs.pop(name) for name in kwargs.keys() & RouterSettings.__class_vars__}
    annotations = {"__annotations__": dict.fromkeys(constants, ClassVar), "__module__": __name__}
    model = type("SettingsOfATest", (RouterSettings,), annotations | constants) if constants else RouterSettings
    return model.model_validate({"drain_timeout_s": 0.0, **kwargs})

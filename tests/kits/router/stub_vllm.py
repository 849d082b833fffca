"""A server that answers as a vLLM server does to who asks what it is: its pages are what vLLM 0.32 answered.

``vllm_metrics.txt`` has a part of that server's page ``/metrics``, with every line about what is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelFacts, SideChannelReason

_PAGE = (Path(__file__).parent / "vllm_metrics.txt").read_text()


@dataclass
class Numbers:
    """What ``/metrics`` says; lists have a number for each engine."""

    running: list[int] = field(default_factory=lambda: [0])
    waiting: list[int] = field(default_factory=lambda: [0])
    deferred: list[int] = field(default_factory=lambda: [0])
    usage: list[float] = field(default_factory=lambda: [0.0])
    block_size: int = 16
    num_blocks: int = 100
    expired: int = 0
    late: int = 0
    has_nixl: bool = True
    started_s: float = 1.79540723364e09
    #: Lines of other metrics, before the numbers of the KV cache.
    others: str = ""

    def page(self) -> str:
        """The page with these numbers."""
        lines = []
        for line in _PAGE.splitlines():
            if line.startswith("# HELP vllm:cache_config_info"):
                lines += self.others.splitlines()
            if "vllm:nixl_" in line and not self.has_nixl:
                continue
            name = line.partition("{")[0]
            if name == "vllm:num_requests_waiting_by_reason":
                values: list[Any] = self.deferred if 'reason="deferred"' in line else self.waiting
            elif name == "vllm:num_requests_waiting":
                values = [sum(pair) for pair in zip(self.waiting, self.deferred, strict=True)]
            else:
                values = {
                    "vllm:num_requests_running": self.running,
                    "vllm:kv_cache_usage_perc": self.usage,
                    "vllm:cache_config_info": [1] * len(self.running),
                    "vllm:nixl_num_kv_expired_reqs_total": [self.expired],
                    "vllm:nixl_num_notifications_after_expiry_total": [self.late],
                }.get(name, [])
            lines += [self._sample(line, rank, value) for rank, value in enumerate(values)] or [self._other(line)]
        return "\n".join(lines) + "\n"

    def _sample(self, line: str, rank: int, value: float) -> str:
        line = line.replace('engine="0"', f'engine="{rank}"')
        line = re.sub(r',block_size="\d+"', f',block_size="{self.block_size}"', line)
        line = re.sub(r'num_gpu_blocks="\d+"', f'num_gpu_blocks="{self.num_blocks}"', line)
        return f"{line.rpartition(' ')[0]} {float(value)}"

    def _other(self, line: str) -> str:
        return f"process_start_time_seconds {self.started_s}" if line.startswith("process_start") else line


class StubVllm:
    """One server on loopback. Its attributes may be changed while it serves."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.version: Any = {"version": "0.32.0"}
        self.health = 200
        #: Names of models, each with what it was loaded from and, for adapters, what for.
        self.models: dict[str, tuple[str, str | None]] = {"tiny": ("/model", None)}
        self.numbers = Numbers()
        self.models_status = 200
        #: Paths, in the order in which they were asked for.
        self.asked: list[str] = []
        #: Asked for on every path below /v1, as vLLM does; empty: nothing is.
        self.key = ""
        self.keys_seen: set[str] = set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"vllm+{self.url}?side_channel={self.port}"

    @property
    def worker_id(self) -> str:
        return f"vllm+{self.url}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def restart(self) -> None:
        """Be another process on the same port."""
        await self.stop()
        self.numbers.started_s += 1
        await self.start()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self.keys_seen.add(request.headers.get("authorization", ""))
        if self.key and request.path.startswith("/v1") and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/version":
            return web.json_response(self.version)
        if request.path == "/health":
            return web.Response(status=self.health)
        if request.path == "/v1/models":
            return web.json_response(self._models(), status=self.models_status)
        if request.path == "/metrics":
            return web.Response(text=self.numbers.page())
        return web.json_response({"detail": "Not Found"}, status=404)

    def _models(self) -> dict[str, Any]:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": 1795407587 + len(self.asked),  # vLLM says the time at which it was asked
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": 4096 if parent is None else None,
                "permission": [],
            }
            for name, (root, parent) in self.models.items()
        ]
        return {"object": "list", "data": cards}


class ScriptedSideChannels:
    """In place of ``VllmLeases``.

    Side channels by port, also that of handshakes over HTTP: what is asked of each, and a hash, or a sentence that says
    what is wrong.
    """

    def __init__(self) -> None:
        self.facts: dict[int, SideChannelFacts] = {}
        self.errors: dict[int, str] = {}
        #: Why those of ``errors`` do not say it.
        self.reason = SideChannelReason.NO_ANSWER
        self.asked: list[tuple[str, int]] = []
        self.met: list[RemoteEngine] = []
        #: See ``VllmLeases``; set by tests that need it.
        self.use_expected: Callable[..., int]

    def serve(self, port: int, digest: str = "hash", engine_id: str = "", *, has_fence: bool = False) -> None:
        self.facts[port] = SideChannelFacts(
            compatibility_hash=digest, engine_id=engine_id or f"engine of {port}", has_fence=has_fence
        )

    def meet(self, where: RemoteEngine) -> None:
        self.met.append(where)

    async def query(self, host: str, port: int, handshake_port: int) -> SideChannelFacts:
        port = handshake_port or port
        self.asked.append((host, port))
        if port in self.errors:
            raise SideChannelError(self.reason, self.errors[port])
        if port not in self.facts:
            raise SideChannelError(SideChannelReason.NO_ANSWER, f"{host}:{port} does not answer")
        return self.facts[port]

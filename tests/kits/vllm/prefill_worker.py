"""Starts ``prefill_main`` and listens to it. Not a test."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from baton_serve.core.process.interpreter import ROOT
from baton_serve.core.ucx import ucx_environment
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from tests.kits.patience import PATIENCE_S

#: Without torch, which NIXL would import for seconds only to look at its version.
PROGRAM = "import sys; sys.modules['torch'] = None; from tests.kits.vllm.prefill_main import main; main()"


class PrefillWorker:
    """A running worker."""

    def __init__(self, process: Process, spec: dict[str, Any]) -> None:
        self._process = process
        self._spec = spec
        self._port = 0

    @property
    def where(self) -> RemoteEngine:
        """What its answers would say."""
        sizes = {"tp_size": self._spec["tp_size"], "pp_size": self._spec["pp_size"]}
        return RemoteEngine(engine_id=self._spec["engine_id"], host="127.0.0.1", port=self._port, **sizes)

    async def ready(self) -> None:
        self._port = (await self.next("ready"))["port"]

    async def grant(self, lease_id: str) -> None:
        """Begin a lease on every rank."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{lease_id}\n".encode())
        await self.next("granted")

    async def next(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these kinds. Those of other kinds are skipped."""
        while (event := await self.any_event())["event"] not in kinds:
            pass
        return event

    async def any_event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self._process.stdout.readline()
        assert line, "the prefill worker has ended"
        event: dict[str, Any] = json.loads(line)
        return event

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def prefill_worker(
    *, duration_s: int = 60, tp_size: int = 1, pp_size: int = 1, spoil: str = "", engine_id: str = ""
) -> AsyncIterator[PrefillWorker]:
    """A worker whose leases last ``duration_s``, ready; killed in the end."""
    sizes = {"duration_s": duration_s, "tp_size": tp_size, "pp_size": pp_size}
    spec = sizes | {"engine_id": engine_id or secrets.token_hex(8), "spoil": spoil}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps(spec),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | ucx_environment("127.0.0.1") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    worker = PrefillWorker(process, spec)
    try:
        await worker.ready()
        yield worker
    finally:
        await worker.kill()

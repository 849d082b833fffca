"""Baton's worker and vLLM's server as processes. One of them computes at a time; the others are stopped (SIGSTOP),
because vLLM's ranks spin while they wait.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_serve.baton.cluster.process import ProcessSpec, Startable, alone, stopped
from baton_serve.baton.processes.child import Child, ChildSpec
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.launcher import Launch
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.core.process.descendants import descendants_of
from baton_serve.core.process.interpreter import python
from bench.engine.setups import Setup
from bench.models.sized import MAX_POSITIONS, model_folder

MODEL = "model"
CACHE_GIB = 1
MAX_MODEL_LEN = 4096
STOP_TIMEOUT_S = 5.0
VLLM_START_TIMEOUT_S = 600.0
#: What vLLM's documentation of CPUs says to preload: an allocator, and Intel's OpenMP.
PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")


@dataclass(frozen=True)
class PlainVllm:
    """A vLLM server without a connector, with what its documentation recommends for CPUs. Is a ``Startable``."""

    program: VllmProgram
    setup: Setup
    port: int
    is_compiled: bool
    kind = "both"
    start_timeout_s = VLLM_START_TIMEOUT_S
    has_failpoints = False
    worker_id = ""

    def ranks(self, pid: int) -> list[int]:
        """All of its processes."""
        return descendants_of(pid)

    def kill(self, child: Child) -> bool:
        """Kill all of its processes."""
        runs = child.runs
        child.kill()
        return runs

    def child_spec(self, name: str, redis_url: str, failpoints: str) -> ChildSpec:
        """The spec of one start."""
        argv = [*self.program.command, *self.program.model_flag, str(model_folder(self.setup.size))]
        argv += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", MODEL]
        argv += ["--dtype", self.setup.dtype, "--max-model-len", str(MAX_MODEL_LEN), "--disable-log-stats"]
        argv += [] if self.is_compiled else ["--enforce-eager"]
        launch = Launch(tuple(argv), f"http://127.0.0.1:{self.port}")
        command = (*python("baton_serve.baton.processes.vllm.launcher"), msgspec.json.encode(launch).decode())
        return ChildSpec(name, command, self._environ())

    def _environ(self) -> dict[str, str]:
        bound = {
            "VLLM_CPU_OMP_THREADS_BIND": "0" if self.setup.threads == 1 else f"0-{self.setup.threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            "PYTHONUNBUFFERED": "1",
        }
        libraries = preloaded(Path(self.program.command[0]).parents[1])
        return {**os.environ, **bound, **({"LD_PRELOAD": ":".join(libraries)} if libraries else {})}


def preloaded(environment: Path) -> list[str]:
    """The libraries that vLLM's documentation says to preload, as far as they are installed."""
    places = [environment / "lib", *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib"), Path("/usr/lib64")]
    paths = (next((place / name for place in places if (place / name).exists()), None) for name in PRELOADED)
    return [str(path) for path in paths if path is not None]


def baton_spec(setup: Setup) -> ProcessSpec:
    """Baton's worker, with its defaults."""
    flags = {
        "model": model_folder(setup.size),
        "served-model-name": MODEL,
        "dtype": setup.dtype,
        "torch-threads": setup.threads,
        "kv-cache-bytes": CACHE_GIB << 30,
        "max-model-len": min(MAX_MODEL_LEN, MAX_POSITIONS),
    }
    return ProcessSpec("both", flags)


@dataclass(frozen=True)
class Server:
    """A started server."""

    name: str
    url: str
    pid: int

    def stopped(self) -> AbstractContextManager[object]:
        """It computes nothing inside."""
        return stopped(self.pid, *descendants_of(self.pid))


@asynccontextmanager
async def running(name: str, spec: Startable, folder: Path) -> AsyncIterator[Server]:
    """The server runs inside. Raises ChildDiedError."""
    async with alone(name, spec, folder, STOP_TIMEOUT_S) as process:
        yield Server(name, process.url, process.pid)


@asynccontextmanager
async def vllm_running(program: VllmProgram, setup: Setup, folder: Path, *, is_compiled: bool) -> AsyncIterator[Server]:
    """vLLM runs inside. Raises ChildDiedError."""
    name = "vllm-compiled" if is_compiled else "vllm-eager"
    with HeldPorts() as ports:
        async with running(name, PlainVllm(program, setup, ports.take(), is_compiled), folder) as server:
            yield server

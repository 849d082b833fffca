"""The process that runs a server: what it reports, and that nothing of the server outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_serve.baton.cluster.process import command_line, send
from baton_serve.baton.processes.child import Child, ChildDiedError
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.launcher import PARENT_ENDED
from baton_serve.baton.processes.vllm.program import find_vllm
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel, server_spec
from baton_serve.core.process.interpreter import ROOT
from baton_serve.core.protocol.status import Progress, Status
from tests.kits.baton.up_process import wait_for_end


class Servers:
    """Starts fake servers, and knows what each said and was started with."""

    def __init__(self, folder: Path, environment: Path, ports: HeldPorts) -> None:
        self.folder = folder
        self.statuses: list[Status] = []
        self.is_loading = asyncio.Event()
        self._program = find_vllm(str(environment))
        self._ports = ports

    @asynccontextmanager
    async def start(self, **environ: str) -> AsyncIterator[Child]:
        place = ServerPlace(self._ports.take(), self._ports.take(), self._ports.take())
        environ = {"FAKE_VLLM_DIR": str(self.folder), "PATH": os.environ["PATH"], **environ}
        model = VllmModel("/m", 30, "m")
        spec = server_spec("decode-1", "decode", self._program, model, place, ServerShare(), environ)
        child = Child(spec, self.folder / "decode-1.log", self._take)
        await child.start()
        try:
            yield child
        finally:
            await child.stop(0)

    def _take(self, _: str, status: Status) -> None:
        self.statuses.append(status)
        if isinstance(status, Progress) and status.text.startswith("loading"):
            self.is_loading.set()

    def noted(self) -> dict[str, Any]:
        """What the last start has noted."""
        return dict(json.loads(max(self.folder.glob("decode-*.json")).read_text()))


@pytest.fixture
def servers(tmp_path: Path, vllm_environment: Path) -> Iterator[Servers]:
    with HeldPorts() as ports:
        yield Servers(tmp_path, vllm_environment, ports)


async def test_it_reports_progress_and_where_it_serves(servers: Servers) -> None:
    async with servers.start() as child:
        ready = await child.ready()
        async with httpx.AsyncClient() as http:
            models = (await http.get(f"{ready.url}/v1/models")).json()
        assert models["data"][0]["id"] == "m"
        assert [status.text for status in servers.statuses if isinstance(status, Progress)] == [
            "reading the configuration (LlamaForCausalLM)",
            "loading the weights (50%)",
        ]
        assert "Resolved architecture" in (servers.folder / "decode-1.log").read_text()
        noted = servers.noted()
        assert "PYTHONPATH" not in noted["environ"]
        await child.stop(30)
        assert (await child.ended()).startswith("decode-1: ended with exit code 0")
        assert not command_line(noted["engine"])


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("crash", "vLLM ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory."),
        ("usage", "vLLM ended with exit code 2: vllm serve: error: unrecognized arguments: --flux 3"),
    ],
)
async def test_a_server_that_cannot_start_says_why(servers: Servers, how: str, reason: str) -> None:
    async with servers.start(FAKE_VLLM_DECODE=how) as child:
        with pytest.raises(ChildDiedError) as caught:
            await child.ready()
        assert str(caught.value) == f"decode-1: {reason}"


async def test_a_death_ends_the_engine_too(servers: Servers) -> None:
    async with servers.start() as child:
        await child.ready()
        noted = servers.noted()
        os.kill(noted["pid"], signal.SIGKILL)
        assert await child.ended() == "decode-1: vLLM was ended by SIGKILL"
        await asyncio.to_thread(wait_for_end, [child.pid])
        assert not command_line(noted["engine"])


async def test_a_server_that_ignores_sigterm_is_killed_with_its_engine(servers: Servers) -> None:
    async with servers.start(FAKE_VLLM_DECODE="deaf") as child:
        await child.ready()
        noted = servers.noted()
        await child.stop(0.3)
        await asyncio.to_thread(wait_for_end, [noted["pid"], noted["engine"]])


@pytest.mark.parametrize("how", ["", "deaf"])
async def test_nothing_outlives_the_parent(servers: Servers, how: str) -> None:
    """The launcher's parent is another process here. It is killed when it has asked for a stop that is not obeyed."""
    async with servers.start(FAKE_VLLM_DECODE=how) as child:
        await child.ready()
        await child.stop(0)
        argv, environ = child._spec.argv, child._spec.environ
    program = "import subprocess, sys; subprocess.run([*sys.argv[1:], '--status-fd', '1'])"
    parent = await asyncio.create_subprocess_exec(
        *(argv[0], "-c", program, *argv), env={**environ, "PYTHONPATH": str(ROOT)}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        while b'"event":"ready"' not in await parent.stdout.readline():
            assert not parent.stdout.at_eof()
        noted = servers.noted()
        if how == "deaf":
            os.kill(noted["launcher"], signal.SIGTERM)
    finally:
        parent.kill()
        await parent.wait()
    await asyncio.to_thread(wait_for_end, [noted["pid"], noted["engine"]])


async def test_nothing_outlives_a_parent_of_many_threads(servers: Servers) -> None:
    """The kernel says that the parent has ended once for each of the parent's threads."""
    async with servers.start() as child:
        await child.ready()
        noted = servers.noted()
        while child.runs:
            send(noted["launcher"], PARENT_ENDED)
            await asyncio.sleep(0.001)
        assert not command_line(noted["engine"])


async def test_a_stop_while_it_loads(servers: Servers) -> None:
    async with servers.start(FAKE_VLLM_DECODE="silent") as child:
        await servers.is_loading.wait()
        noted = servers.noted()
        await child.stop(30)
        assert (await child.ended()).startswith("decode-1: ended with exit code 0")
        assert not command_line(noted["engine"])

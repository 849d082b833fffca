"""The process that runs one vLLM server.

``python -m baton_serve.baton.processes.vllm.launcher PARAMETERS --status-fd N`` starts it.

It reports to its parent as Baton's own processes do, writes the server's output to its own, and passes SIGTERM on.
vLLM's engine is a process of its own, which lives on when the one with the HTTP port is killed: whatever happens to
either of them or to the parent, nothing of the server is left when this process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping

import httpx
import msgspec

from baton_serve.baton.processes.child import exit_text
from baton_serve.baton.processes.vllm.output import Output
from baton_serve.core.process.descendants import adopt_orphans, end_descendants
from baton_serve.core.process.interpreter import ROOT, VARIABLE
from baton_serve.core.process.parent_death import die_with_parent, end_with
from baton_serve.core.process.signals import STOP_SIGNALS, on_signals
from baton_serve.core.process.status_pipe import StatusPipe
from baton_serve.core.protocol.status import Failed, Progress, Ready

#: vLLM reports to nobody that it serves, so it is asked: seconds between two questions, and the longest wait for an
#: answer.
HEALTH_INTERVAL_S = 0.2
HEALTH_TIMEOUT_S = 5.0
#: Longest wait for the end of the output once the server has ended, seconds: a process of its own may hold the pipe.
OUTPUT_TAIL_TIMEOUT_S = 1.0
CHUNK_BYTES = 1 << 16
#: Sent by the kernel when the parent ends, once more for each of the parent's threads that ends after the one that
#: started this process. It is not SIGTERM: there is nobody left who would end a server that ignores that. The parent's
#: id tells nothing: it stays the same until the parent's last thread has ended.
PARENT_ENDED = signal.SIGHUP


class Launch(msgspec.Struct, frozen=True):
    """What is run, and the base URL at which it will serve."""

    argv: tuple[str, ...]
    url: str


class Launcher:
    """Runs one server from its start to its end."""

    def __init__(self, launch: Launch, pipe: StatusPipe) -> None:
        self._launch = launch
        self._pipe = pipe
        self._output = Output()
        self._stop = asyncio.Event()
        self._orphaned = asyncio.Event()
        self._last_text = ""

    async def run(self) -> int:
        """Returns the exit code: 0 when the server was to stop, 1 when it ended by itself or could not be started.

        Nothing of the server is left then: a signal that comes later ends this process alone.
        """
        with on_signals(self._note_signal, (*STOP_SIGNALS, PARENT_ENDED)):
            end_with(os.getppid(), PARENT_ENDED)
            try:
                return await self._run_server()
            finally:
                end_descendants()

    async def _run_server(self) -> int:
        # A pipe of our own: with one of asyncio's, waiting for the process would be waiting for all that hold it.
        read_fd, write_fd = os.pipe()
        try:
            process = await self._start(write_fd)
        except OSError as error:
            return self._pipe.give_up("vllm", f"cannot run {self._launch.argv[0]}: {error.strerror}")
        finally:
            os.close(write_fd)
        return await self._serve(process, read_fd)

    def _note_signal(self, number: signal.Signals) -> None:
        (self._orphaned if number is PARENT_ENDED else self._stop).set()

    async def _start(self, output_fd: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._launch.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            env=without_own_path(os.environ),
            preexec_fn=die_with_parent(),
        )

    async def _serve(self, process: asyncio.subprocess.Process, output_fd: int) -> int:
        ended = asyncio.create_task(process.wait(), name="end of vLLM")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        orphaned = asyncio.create_task(self._orphaned.wait(), name="end of the parent")
        reading = asyncio.create_task(self._read(output_fd), name="output")
        health = asyncio.create_task(self._tell_when_healthy(), name="health")
        await asyncio.wait({ended, stopped, orphaned}, return_when=asyncio.FIRST_COMPLETED)
        health.cancel()
        if stopped.done():
            process.terminate()
            await asyncio.wait({ended, orphaned}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done() or orphaned.done():
            return 0
        await asyncio.wait({reading}, timeout=OUTPUT_TAIL_TIMEOUT_S)
        self._pipe.tell(Failed(self._why(ended.result())))
        return 1

    async def _read(self, output_fd: int) -> None:
        """Pass the output on, and tell the parent how far the server is."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output_fd, "rb", buffering=0)
        )
        try:
            while chunk := await stream.read(CHUNK_BYTES):
                _write(chunk)
                for text in self._output.take(chunk):
                    self._tell_progress(text)
        finally:
            transport.close()

    def _tell_progress(self, text: str) -> None:
        if text != self._last_text:
            self._pipe.tell(Progress(text))
            self._last_text = text

    async def _tell_when_healthy(self) -> None:
        async with httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S, trust_env=False) as http:
            while True:
                if await _is_healthy(http, self._launch.url):
                    break
                await asyncio.sleep(HEALTH_INTERVAL_S)
        self._pipe.tell(Ready(self._launch.url))

    def _why(self, code: int) -> str:
        reason = self._output.reason() if code >= 0 else ""
        return f"vLLM {exit_text(code)}{f': {reason}' if reason else ''}"


def without_own_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without Baton's folder in ``PYTHONPATH``: the server has packages of its own."""
    entries = [entry for entry in environ.get(VARIABLE, "").split(os.pathsep) if entry and entry != str(ROOT)]
    rest = {key: value for key, value in environ.items() if key != VARIABLE}
    return {**rest, VARIABLE: os.pathsep.join(entries)} if entries else rest


async def _is_healthy(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _write(chunk: bytes) -> None:
    """Write to the log. On a full disk the log has a gap, and the server goes on."""
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


async def _run(launch: Launch, pipe: StatusPipe) -> int:
    return await Launcher(launch, pipe).run()


def main() -> int:
    """Run the server that the command line names, until it ends or SIGTERM comes."""
    parameters, _, status_fd = sys.argv[1:]
    adopt_orphans()
    return asyncio.run(_run(msgspec.json.decode(parameters, type=Launch), StatusPipe(int(status_fd))))


if __name__ == "__main__":
    sys.exit(main())

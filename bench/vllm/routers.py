"""The routers: how each is started, from a command with gaps, and ended."""

from __future__ import annotations

import asyncio
import shlex
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.child import COMMAND
from bench.client import AnswerError, Client
from bench.processes import start, stop
from bench.vllm.servers import D_MAX_NUM_SEQS, LEASE_DURATION_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path
    from subprocess import Popen

    from bench.vllm.servers import Servers

#: Baton as it would be started by hand.
BATON = (
    shlex.join(COMMAND)
    + " router --redis-url '' --port {port} --log-level warning"
    + " --prefill 'vllm+{prefill}?side_channel={prefill_side_channel}'"
    + f" --decode 'vllm+{{decode}}?side_channel={{decode_side_channel}}&max_num_seqs={D_MAX_NUM_SEQS}'"
    + f" --vllm-lease-duration-s {LEASE_DURATION_S}"
)
#: A router that gives no right answer after this many seconds never will.
START_TIMEOUT_S = 90.0
POLL_S = 0.2
NUM_WARM_UPS = 3


class RouterError(Exception):
    """A router that cannot be measured. The message is one line."""


def gaps(servers: Servers, port: int) -> dict[str, str]:
    """What can stand in braces in a router's command."""
    found = {"port": str(port)}
    for role, place in (("prefill", servers.p), ("decode", servers.d)):
        found |= {role: place.url, f"{role}_port": str(place.port)}
        found[f"{role}_side_channel"] = str(place.side_channel_port)
    return found


def fill(command: str, values: Mapping[str, str]) -> list[str]:
    """The command as a list. Raises RouterError for a gap that has no value, or for what no shell could split."""
    try:
        return [part.format_map(values) for part in shlex.split(command)]
    except (KeyError, ValueError, IndexError) as error:
        raise RouterError(f"no command: {command!r} ({error}); in braces can stand {', '.join(values)}") from None


@asynccontextmanager
async def router(name: str, argv: list[str], port: int, folder: Path) -> AsyncIterator[str]:
    """Run a router while inside; yields its URL once it has answered. Raises RouterError."""
    process = start(argv, folder / f"{name}.log")
    url = f"http://127.0.0.1:{port}"
    try:
        await _warm_up(name, url, process)
        yield url
    finally:
        await asyncio.to_thread(stop, process)


async def _warm_up(name: str, url: str, process: Popen[str]) -> None:
    """Ask until some answers have come: then it knows its servers, and D knows P."""
    body = {"model": MODEL_NAME, "prompt": "What is Baton? " * 40, "max_tokens": 4, "temperature": 0}
    began_s, num_answers = time.monotonic(), 0
    async with Client(START_TIMEOUT_S) as client:
        while num_answers < NUM_WARM_UPS:
            if process.poll() is not None:
                raise RouterError(f"{name} ended with code {process.returncode}; see its log")
            if time.monotonic() - began_s > START_TIMEOUT_S:
                raise RouterError(f"{name} gives no answer; see its log")
            num_answers += await _answers(client, url, body)
            await asyncio.sleep(POLL_S)


async def _answers(client: Client, url: str, body: Mapping[str, object]) -> bool:
    try:
        await client.ask(url, body)
    except AnswerError:
        return False
    return True

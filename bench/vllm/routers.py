"""The routers: how each is started, from a command with gaps, and ended."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.child import COMMAND
from bench.client import TEXT
from bench.connector.pair import Pair
from bench.processes import start, stop
from bench.router.routers.router import RouterError, wait_for_answer
from bench.vllm.servers import D_MAX_NUM_SEQS, LEASE_DURATION_S

#: Baton as it would be started by hand.
BATON = (
    shlex.join(COMMAND)
    + " router --redis-url '' --port {port} --log-level warning"
    + " --prefill 'vllm+{prefill}?side_channel={prefill_side_channel}'"
    + f" --decode 'vllm+{{decode}}?side_channel={{decode_side_channel}}&max_num_seqs={D_MAX_NUM_SEQS}'"
    + f" --vllm-lease-duration-s {LEASE_DURATION_S}"
)
#: After these answers a router knows its servers, and D knows P.
NUM_WARM_UPS = 3
WARM_UP = {"model": MODEL_NAME, "prompt": "What is Baton? " * 40, "max_tokens": 4, "temperature": 0}


def gaps(servers: Pair, port: int) -> dict[str, str]:
    """What can stand in braces in a router's command."""
    found = {"port": str(port)}
    for role, place in (("prefill", servers.p_place), ("decode", servers.d_place)):
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
    log = folder / f"{name}.log"
    process = start(argv, log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(NUM_WARM_UPS):
            await asyncio.to_thread(wait_for_answer, name, url + TEXT, WARM_UP, process, log)
        yield url
    finally:
        await asyncio.to_thread(stop, process)

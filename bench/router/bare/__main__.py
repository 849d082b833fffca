"""``python -m bench.router.bare PORT P,P D,D``: serve on loopback, with engines on these ports, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from itertools import cycle

import uvloop

from baton_serve.core.net.served.config import raise_descriptor_limit
from bench.router.bare.client import Client
from bench.router.bare.engine import Engine


async def main() -> None:
    """Serve. Each client takes up to three descriptors."""
    raise_descriptor_limit()
    port, prefill, decode = sys.argv[1:]
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    turns_of_p, turns_of_d = (cycle([Engine(int(one)) for one in ports.split(",")]) for ports in (prefill, decode))
    server = await loop.create_server(lambda: Client(turns_of_p, turns_of_d), "127.0.0.1", int(port), backlog=4096)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(main())

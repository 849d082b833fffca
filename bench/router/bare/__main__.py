"""``python -m bench.router.bare PORT P,P D,D``: serve on loopback, with engines on these ports, until SIGTERM."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from itertools import cycle

import uvloop

from bench.router.bare.client import Client
from bench.router.bare.engine import Engine


async def main() -> None:
    """Serve, with as many files as the system allows: there are up to three for each client."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    port, prefill, decode = sys.argv[1:]
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    turns_of_p, turns_of_d = (cycle([Engine(int(one)) for one in ports.split(",")]) for ports in (prefill, decode))
    server = await loop.create_server(lambda: Client(turns_of_p, turns_of_d), "127.0.0.1", int(port), backlog=4096)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(main())

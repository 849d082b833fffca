"""Workers as the router sees them, for tests that need no process behind one."""

from __future__ import annotations

from typing import Any

from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.server_facts import VllmServerFacts
from baton_serve.router.pool.usage import Usage
from baton_serve.router.pool.worker import Worker

_OF_SERVER = VllmServerFacts.__slots__


def new_worker(
    worker_id: str,
    url: str = "http://x",
    role: Role = Role.BOTH,
    limit: int = 4,
    *,
    num_blocks: int = 0,
    block_size: int = 0,
    **rest: Any,
) -> Worker:
    """``rest``: of the worker, or of the vLLM server behind it."""
    server = VllmServerFacts(**{name: rest.pop(name) for name in _OF_SERVER if name in rest})
    return Worker(worker_id, url, role, Usage(limit, num_blocks, block_size), server=server, **rest)

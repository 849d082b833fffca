"""Workers and prompts to place, without a server."""

from __future__ import annotations

from typing import Any

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.placement import Prefilled, Prompt
from baton_serve.router.pool import Worker
from tests.kits.router.workers import new_worker


def worker(name: str, *, in_flight: int = 0, limit: int = 100, **kwargs: Any) -> Worker:
    made = new_worker(worker_id=name, url="http://x", role=Role.BOTH, limit=limit, engine_id=f"engine-{name}", **kwargs)
    made.usage.in_flight = in_flight
    return made


def with_blocks(name: str, free: int, cached: int = 0, *, in_flight: int = 0, block_size: int = 16) -> Worker:
    made = worker(name, num_blocks=1000, block_size=block_size)
    made.report(WorkerLoad(free_blocks=free, cached_blocks=cached), 1.0)
    made.usage.in_flight = in_flight
    return made


def prompt(text: bytes = b"", *, model: str = "m") -> Prompt:
    return Prompt(model, len(text), lambda: text)


def prefilled(text: bytes = b"", num_tokens: int = 0, **kwargs: Any) -> Prefilled:
    return Prefilled(prompt(text, **kwargs), None, num_tokens)

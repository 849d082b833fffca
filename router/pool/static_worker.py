"""Makes a worker from its address: one that the registry does not list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.protocol.worker import Role
from router.pool.breaker import Breaker
from router.pool.worker import EngineKind, Worker

if TYPE_CHECKING:
    from core.protocol.worker_address import WorkerAddress

#: A prefill worker is sent up to this many times the requests it runs at once, so that it never waits for the router.
PREFILL_QUEUE_FACTOR = 2


def queue_factor(role: Role) -> int:
    """How many times the requests that a worker runs at once it is sent."""
    return PREFILL_QUEUE_FACTOR if role is Role.PREFILL else 1


def static_worker(
    address: WorkerAddress,
    role: Role,
    default_limit: int,
    breaker_failures: int,
    given: WorkerAddress | None = None,
) -> Worker:
    """The worker at ``address``. ``given``: the address as people gave it, with a host name that means several."""
    return Worker(
        worker_id=address.worker_id,
        url=address.url,
        role=role,
        limit=address.max_num_seqs * queue_factor(role) or default_limit,
        kind=EngineKind.VLLM if address.is_vllm else EngineKind.PLAIN,
        given=given or address,
        side_channel=address.side_channel if address.is_vllm else None,
        handshake_port=address.handshake_port,
        breaker=Breaker(breaker_failures),
    )

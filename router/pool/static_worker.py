"""Makes a worker from its address, or from the announcement of a vLLM server."""

from __future__ import annotations

from baton_serve.core.protocol.vllm_server import VllmRecord
from baton_serve.core.protocol.worker import Role
from baton_serve.core.protocol.worker_address import WorkerAddress
from baton_serve.router.pool.kind import WorkerKind
from baton_serve.router.pool.server_facts import VllmServerFacts
from baton_serve.router.pool.usage import Usage
from baton_serve.router.pool.worker import Worker

#: A prefill worker is sent up to this many times the requests it runs at once, so that it never waits for the router.
PREFILL_QUEUE_FACTOR = 2


def queue_factor(role: Role) -> int:
    """How many times the requests that a worker runs at once it is sent."""
    return PREFILL_QUEUE_FACTOR if role is Role.PREFILL else 1


def static_worker(
    address: WorkerAddress, role: Role, default_limit: int, kind: WorkerKind, given: WorkerAddress | None = None
) -> Worker:
    """The worker at ``address``. ``given``: the address as people gave it, with a host name that means several."""
    return Worker(
        worker_id=address.worker_id,
        url=address.url,
        role=role,
        usage=Usage(address.max_num_seqs * queue_factor(role) or default_limit),
        kind=kind,
        given=given or address,
        server=VllmServerFacts(
            side_channel=address.side_channel if address.is_vllm else None,
            handshake_port=address.handshake_port,
            max_num_seqs=address.max_num_seqs,
        ),
        name=address.name,
    )


def announced_vllm(record: VllmRecord, default_limit: int, kind: WorkerKind) -> Worker:
    """The worker of a vLLM server that announces itself. It has the same id as if it were added by its address."""
    return Worker(
        worker_id=f"vllm+{record.url}",
        url=record.url,
        role=record.role,
        usage=Usage(
            record.max_num_seqs * queue_factor(record.role) or default_limit, record.num_blocks, record.block_size
        ),
        kind=kind,
        version=record.version,
        server=VllmServerFacts(
            side_channel=(record.side_channel_host, record.side_channel_port),
            handshake_port=record.handshake_port,
            max_num_seqs=record.max_num_seqs,
        ),
        tp=record.tp,
    )

"""The record of a worker that is none: what stand-ins announce of themselves."""

from __future__ import annotations

from baton_serve.core.leases.ids import new_id
from baton_serve.core.protocol.worker import Role, WorkerRecord

BLOCK_SIZE = 16


def worker_record(
    role: Role, model: str, url: str, *, num_blocks: int, max_num_seqs: int, engine_id: str = ""
) -> WorkerRecord:
    """A record as long as that of a real worker. Without an ``engine_id`` it has a new one."""
    engine_id = engine_id or new_id()
    return WorkerRecord(
        worker_id=engine_id,
        engine_id=engine_id,
        role=role,
        model=model,
        url=url,
        internal_url=url,
        compatibility_hash="c" * 32,
        weights_fingerprint="f" * 32,
        max_model_len=1 << 20,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
    )

"""What the engine has done since its start, for ``/metrics``. Counters only grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.blocks.block_pool import PoolStats


@dataclass(slots=True)
class Counters:
    """``prefill_tokens`` counts computed tokens, again if they were computed again after a preemption.
    ``decode_tokens`` counts those as well that a step sent ahead computed for sequences that had just ended.
    ``prefix_hit_tokens`` of ``prefix_query_tokens`` were found in the prefix cache. ``reads`` counts reads by outcome
    (done, stale, failed, cancelled), each once for all ranks; bytes and descriptors are sums over the ranks.
    """

    steps: int = 0
    step_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    #: Contiguous pieces of memory that were read.
    read_descriptors: int = 0
    #: Reads that had not ended after ``read_timeout_s``, including those that had been cancelled.
    reads_timed_out: int = 0
    #: Reads that the fence refused: P had reused a block.
    fence_rejections: int = 0
    #: Prompts computed here although P had computed them.
    local_prefills: int = 0
    #: Prompt tokens of refused reads that came before the first bad block, and so were not computed again.
    stale_kept_tokens: int = 0
    hand_offs: int = 0
    #: Hand-offs whose D was this engine too, so that no read was needed.
    local_handoffs: int = 0
    leases_ended: int = 0
    reads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("done", "stale", "failed", "cancelled"), 0))
    #: Sequences that have ended, by state (finished, handed_off, aborted, failed).
    ended: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("finished", "handed_off", "aborted", "failed"), 0)
    )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine. ``counters`` is a copy."""

    counters: Counters
    pool: PoolStats
    load: WorkerLoad

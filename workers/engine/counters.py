"""What the engine has done since its start, for ``/metrics``. Counters only grow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.blocks.block_pool import PoolStats


def _counted(text: str, name: str = "") -> Any:
    """A number that ``/metrics`` shows, under ``name`` or else the field's. ``text``: what it says of it."""
    return field(default=0, metadata={"text": text, "name": name})


@dataclass(slots=True)
class Counters:
    """``reads`` counts reads by outcome, each once for all ranks; bytes and descriptors are sums over the ranks."""

    steps: int = _counted("Forward passes.")
    step_seconds: float = 0.0
    prefill_tokens: int = _counted("Prompt tokens computed, again after a preemption.")
    #: Those as well that a step sent ahead computed for sequences that had just ended.
    decode_tokens: int = _counted("Tokens sampled after the first.")
    preemptions: int = _counted("Sequences that gave up their blocks and started over.")
    prefix_query_tokens: int = _counted("Prompt tokens looked for in the prefix cache.", "prefix_cache_queries")
    prefix_hit_tokens: int = _counted("Prompt tokens found there.", "prefix_cache_hits")
    read_bytes: int = _counted("Bytes of KV blocks read from other engines.")
    read_seconds: float = 0.0
    read_descriptors: int = _counted("Contiguous pieces that were read.")
    #: Those that had been cancelled as well.
    reads_timed_out: int = _counted("Block reads that had not ended in time.")
    fence_rejections: int = _counted("Reads refused because P had reused a block.")
    local_prefills: int = _counted("Prompts computed here although P had computed them.")
    stale_kept_tokens: int = _counted("Prompt tokens of refused reads that were kept.")
    hand_offs: int = _counted("Prefills whose blocks were put under a lease.")
    local_handoffs: int = _counted("Hand-offs that this worker itself decoded, without a read.", "take_overs")
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

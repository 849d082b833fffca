"""The keys and the channel of one engine. The braces put all of them into one slot of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton_serve.core.leases.ids import check_id

#: Leases per script call. Redis serves no other client during a call (about 1 us per lease and command).
MAX_BATCH = 500


def leases_key(engine_id: str) -> str:
    """The key of the engine's sorted set."""
    return f"baton:{{{check_id(engine_id)}}}:leases"


def outcome_keys(engine_id: str, lease_ids: Sequence[str]) -> list[str]:
    """The key under which the outcome of each lease is remembered."""
    prefix = f"baton:{{{check_id(engine_id)}}}:outcome:"
    return [prefix + check_id(lease_id) for lease_id in lease_ids]


def wake_channel(engine_id: str) -> str:
    """The channel on which releases of the engine's leases are published."""
    return f"baton:{{{check_id(engine_id)}}}:wake"


def batches(lease_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids, at most ``MAX_BATCH`` at a time."""
    for start in range(0, len(lease_ids), MAX_BATCH):
        yield lease_ids[start : start + MAX_BATCH]

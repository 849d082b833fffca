"""P asks about a lease when it falls due, and hears only then that it was renewed: the store decides, not P's clock."""

from __future__ import annotations

import pytest

from baton_serve.core.leases.holder import LeaseHolder
from baton_serve.core.leases.store import LeaseState, LeaseStatus

DURATION_MS, START_MS = 6_000, 1_000_000


@pytest.mark.parametrize("late_ms", [0, 1, 2 * DURATION_MS])
def test_a_renewal_that_p_hears_of_late_counts(late_ms: int) -> None:
    holder = LeaseHolder(duration_ms=DURATION_MS, redis_grace_ms=60_000, now_ms=START_MS)
    holder.grant("a", START_MS)
    holder.tell_now()
    holder.granted(holder.take_work(START_MS).grant, START_MS)
    now_ms = START_MS + DURATION_MS + late_ms
    work = holder.take_work(now_ms)
    assert work.reap == ["a"]
    assert holder.answered(work, [LeaseStatus("a", LeaseState.HELD, 10)], now_ms) == []
    assert holder.pinned() == ["a"]
    assert holder.next_work_ms() == now_ms + 10

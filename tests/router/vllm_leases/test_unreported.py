"""When the agent counts as hung."""

from __future__ import annotations

from router.vllm_leases.book import Batch
from router.vllm_leases.unreported import SURE_MS, Unreported

LIMIT_MS = 5000


def begun(at_ms: int) -> Batch:
    return Batch("e", (), ("lease",), at_ms)


def test_a_batch_that_is_not_reported_is_noticed_at_the_second_look() -> None:
    batches = Unreported(LIMIT_MS)
    batches.add(begun(0))
    batches.add(begun(100))
    assert batches.next_ms() == LIMIT_MS
    assert not batches.hangs(LIMIT_MS - 1)
    assert not batches.hangs(LIMIT_MS)
    assert batches.next_ms() == LIMIT_MS + SURE_MS
    assert not batches.hangs(LIMIT_MS + SURE_MS - 1)
    assert batches.hangs(LIMIT_MS + SURE_MS)


def test_a_router_that_was_held_up_itself_reads_the_report_first() -> None:
    batches = Unreported(LIMIT_MS)
    late, next_one = batches.add(begun(0)), begun(4 * LIMIT_MS)
    assert not batches.hangs(4 * LIMIT_MS)
    batches.pop(late)
    assert batches.next_ms() is None
    batches.add(next_one)
    assert batches.next_ms() == 5 * LIMIT_MS
    assert not batches.hangs(5 * LIMIT_MS)


def test_after_the_end_of_an_agent_nothing_is_overdue() -> None:
    batches = Unreported(LIMIT_MS)
    batches.add(begun(0))
    assert not batches.hangs(LIMIT_MS)
    assert batches.pop_all() == [begun(0)]
    assert (batches.next_ms(), batches.hangs(2 * LIMIT_MS)) == (None, False)

"""When the agent counts as hung."""

from __future__ import annotations

from baton_serve.router.vllm.leases.unreported import SURE_MS, Unreported

LIMIT_MS = 5000


def test_a_command_that_is_not_answered_is_noticed_at_the_second_look() -> None:
    unreported = Unreported()
    unreported.add("later", LIMIT_MS + 100)
    unreported.add("first", LIMIT_MS)
    assert unreported.next_ms() == LIMIT_MS
    assert not unreported.hangs(LIMIT_MS - 1)
    assert not unreported.hangs(LIMIT_MS)
    assert unreported.next_ms() == LIMIT_MS + SURE_MS
    assert not unreported.hangs(LIMIT_MS + SURE_MS - 1)
    assert unreported.hangs(LIMIT_MS + SURE_MS)


def test_a_router_that_was_held_up_itself_reads_the_answer_first() -> None:
    unreported = Unreported()
    unreported.add("late", LIMIT_MS)
    assert not unreported.hangs(4 * LIMIT_MS)
    unreported.discard("late")
    assert unreported.next_ms() is None
    unreported.add("next", 5 * LIMIT_MS)
    assert unreported.next_ms() == 5 * LIMIT_MS
    assert not unreported.hangs(5 * LIMIT_MS)


def test_after_the_end_of_an_agent_nothing_is_overdue() -> None:
    unreported = Unreported()
    unreported.add("one", LIMIT_MS)
    assert not unreported.hangs(LIMIT_MS)
    unreported.clear()
    assert (unreported.next_ms(), unreported.hangs(2 * LIMIT_MS)) == (None, False)

"""When the agent counts as hung."""

from __future__ import annotations

from baton_serve.router.vllm.leases.unanswered import SURE_MS, Unanswered

LIMIT_MS = 5000


def test_a_command_that_is_not_answered_is_noticed_at_the_second_look() -> None:
    unanswered = Unanswered()
    unanswered.add(LIMIT_MS)
    unanswered.add(LIMIT_MS + 100)
    assert unanswered.next_ms() == LIMIT_MS
    assert not unanswered.hangs(LIMIT_MS - 1)
    assert not unanswered.hangs(LIMIT_MS)
    assert unanswered.next_ms() == LIMIT_MS + SURE_MS
    assert not unanswered.hangs(LIMIT_MS + SURE_MS - 1)
    assert unanswered.hangs(LIMIT_MS + SURE_MS)


def test_a_router_that_was_held_up_itself_reads_the_answer_first() -> None:
    unanswered = Unanswered()
    unanswered.add(LIMIT_MS)
    assert not unanswered.hangs(4 * LIMIT_MS)
    unanswered.answered()
    assert unanswered.next_ms() is None
    unanswered.add(5 * LIMIT_MS)
    assert unanswered.next_ms() == 5 * LIMIT_MS
    assert not unanswered.hangs(5 * LIMIT_MS)


def test_after_the_end_of_an_agent_nothing_is_overdue() -> None:
    unanswered = Unanswered()
    unanswered.add(LIMIT_MS)
    assert not unanswered.hangs(LIMIT_MS)
    unanswered.clear()
    assert (unanswered.next_ms(), unanswered.hangs(2 * LIMIT_MS)) == (None, False)
    unanswered.answered()  # it was under way

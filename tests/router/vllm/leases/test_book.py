"""The deadlines: never later than those of a P that follows vLLM's rules, and late enough to be of use."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.vllm.leases.book import DELIVERY_MS, AlreadyHeldError, Batch, LeaseBook

E, L = "engine", "lease"
#: A lease of six seconds: P adds four with each renewal.
DURATION_S, EXTENSION_MS, FIRST_MS = 6, 4000, 5000


def book(at_ms: int = 0, asked_ms: int | None = None) -> LeaseBook:
    """With one lease."""
    made = LeaseBook(DURATION_S)
    made.use_expected(E, 0)
    made.hold(E, L, at_ms, asked_ms)
    return made


def take(leases: LeaseBook, now_ms: int) -> Batch:
    batch = leases.take(E, now_ms)
    assert batch is not None
    return batch


def test_the_answer_of_p_is_taken_for_later_than_the_prefill() -> None:
    leases = book()
    assert leases.remaining_ms(E, L, 0) == FIRST_MS
    assert leases.take_over(FIRST_MS - 1) == []
    assert leases.take_over(FIRST_MS) == [(E, L)]
    assert (len(leases), leases.remaining_ms(E, L, 0), leases.use_expected(E, 9)) == (0, 0, 1)
    assert leases.take_over(FIRST_MS) == []


@pytest.mark.parametrize(("asked_ms", "deadline_ms"), [(0, 9000), (3000, 9000), (3001, 9001), (9000, 15_000)])
def test_the_prefill_ended_after_p_was_asked(asked_ms: int, deadline_ms: int) -> None:
    """An answer that may have lain unread since 4000 was not there before it was asked for."""
    leases = LeaseBook(DURATION_S)
    leases.hold(E, L, 4000, asked_ms)
    assert leases.remaining_ms(E, L, 0) == deadline_ms


def test_a_renewal_counts_from_when_it_began_and_only_once_it_was_sent() -> None:
    leases = book()
    batch = take(leases, 2000)
    assert leases.remaining_ms(E, L, 2000) == FIRST_MS - 2000
    leases.sent(batch, 2400)
    assert leases.remaining_ms(E, L, 2400) == 2000 + EXTENSION_MS - 2400


def test_an_early_renewal_shortens_nothing() -> None:
    leases = book()
    leases.sent(take(leases, 0), 1)
    assert leases.remaining_ms(E, L, 1) == FIRST_MS - 1


@pytest.mark.parametrize(("late_ms", "counts"), [(0, True), (1, False)])
def test_a_renewal_that_was_perhaps_late_counts_for_nothing(late_ms: int, counts: bool) -> None:
    leases = book()
    leases.sent(take(leases, 4000), FIRST_MS - DELIVERY_MS + late_ms)
    assert (leases.take_over(FIRST_MS) == []) is counts


def test_a_renewal_that_was_not_sent_to_all_is_due_again_and_counts_for_nothing() -> None:
    leases = book()
    leases.not_sent(take(leases, 1000), 1500)
    assert leases.next_ms({E}) == 1500
    assert take(leases, 1500).renew == (L,)
    assert leases.take_over(FIRST_MS) == [(E, L)]


def test_leases_of_an_engine_come_to_be_renewed_together_six_times_in_a_duration() -> None:
    leases = book()
    assert take(leases, 0).renew == (L,)
    leases.hold(E, "b", 300)
    leases.hold("other", "c", 300)
    assert take(leases, 300).renew == ("b",)
    assert leases.next_ms({E}) == 1000
    assert leases.take(E, 999) is None
    assert take(leases, 1000).renew == (L, "b")
    assert leases.take(E, 1999) is None
    assert take(leases, 2000).renew == (L, "b")


def test_a_new_lease_has_no_others_renewed_that_just_were() -> None:
    """Else the renewals would grow with the square of the leases that are held."""
    leases = LeaseBook(DURATION_S)
    num_renewals = 0
    for number in range(1000):
        leases.hold(E, f"lease{number}", number)
        num_renewals += len(take(leases, number).renew)
    assert num_renewals <= 2 * 1000


def test_an_engine_that_is_not_connected_has_deadlines_only() -> None:
    assert book().next_ms(set()) == FIRST_MS
    assert LeaseBook(DURATION_S).next_ms({E}) is None


def test_a_release_is_sent_once_and_at_once() -> None:
    leases = book()
    take(leases, 0)
    leases.release(E, L, 10)
    assert (len(leases), E in leases, leases.next_ms({E})) == (0, True, 0)
    batch = take(leases, 10)
    assert (batch.release, batch.renew) == ((L,), ())
    leases.sent(batch, 11)
    assert (leases.take(E, 12), E in leases, leases.use_expected(E, 9)) == (None, False, 0)


def test_blocks_that_a_d_may_be_reading_are_not_released() -> None:
    leases = book()
    leases.give(E, L)
    assert take(leases, 0).renew == (L,)  # D may wait long before it reads
    leases.release(E, L, 10)
    assert (leases.take(E, 10), E in leases, leases.use_expected(E, 9)) == (None, False, 1)


def test_blocks_that_p_may_have_freed_are_not_released() -> None:
    leases = book()
    leases.release(E, L, FIRST_MS)
    assert (leases.take(E, FIRST_MS), leases.use_expected(E, 9)) == (None, 1)


@pytest.mark.parametrize("ask", ["take", "take_over"])
def test_a_release_that_waited_too_long_for_a_connection_is_dropped(ask: str) -> None:
    leases = book()
    leases.release(E, L, 10)
    assert leases.next_ms(set()) == FIRST_MS
    assert not (leases.take(E, FIRST_MS) if ask == "take" else leases.take_over(FIRST_MS))
    assert (E in leases, leases.use_expected(E, 9)) == (False, 1)


def test_a_release_that_may_have_reached_some_ranks_is_not_sent_again() -> None:
    leases = book()
    leases.release(E, L, 10)
    leases.not_sent(take(leases, 10), 20)
    assert (leases.take(E, 20), leases.use_expected(E, 9)) == (None, 1)


def test_a_lease_that_d_has_confirmed_is_forgotten() -> None:
    leases = book()
    leases.give(E, L)
    leases.confirm(E, L)
    leases.release(E, L, 5)
    assert (len(leases), E in leases, leases.use_expected(E, 9)) == (0, False, 0)


def test_a_lease_that_is_gone_can_be_told_anything() -> None:
    leases = book()
    batch = take(leases, 0)
    leases.take_over(FIRST_MS)
    leases.sent(batch, FIRST_MS)
    leases.not_sent(batch, FIRST_MS)
    leases.give(E, L)
    leases.confirm(E, L)
    leases.release(E, L, FIRST_MS)
    assert (E in leases, leases.use_expected(E, 9)) == (False, 1)


def test_a_lease_is_held_once() -> None:
    leases = book()
    with pytest.raises(AlreadyHeldError):
        leases.hold(E, L, 100)
    with pytest.raises(ValueError, match="comma"):
        leases.hold(E, "a,b", 100)
    assert (len(leases), leases.remaining_ms(E, L, 0)) == (1, FIRST_MS)


def test_an_expiry_is_expected_once_and_not_long_after_p_could_have_had_it() -> None:
    leases = book()
    leases.give(E, L)
    leases.release(E, L, 10)
    assert (leases.use_expected(E, 0), leases.use_expected(E, 2), leases.use_expected(E, 1)) == (0, 1, 0)
    leases.hold(E, "read", 0)
    leases.give(E, "read")
    leases.release(E, "read", 10)
    leases.hold(E, "next", 10 + 2 * DURATION_S * 1000 - 1)
    assert (leases.use_expected(E, 0), leases.use_expected(E, 1)) == (0, 1), "it may have been idle so far"
    leases.hold(E, "read", 0)
    leases.give(E, "read")
    leases.release(E, "read", 10)
    leases.hold(E, "last", 10 + 2 * DURATION_S * 1000)
    assert (leases.use_expected(E, 0), leases.use_expected(E, 1)) == (0, 0)


def test_p_may_hear_too_late_of_a_lease_that_was_given_and_left() -> None:
    """vLLM's D says once more that it has read when its unstreamed request is cancelled."""
    leases = book()
    leases.use_expected(E, 0)
    leases.give(E, L)
    leases.release(E, L, 10)
    assert (leases.use_expected(E, 2, late=True), leases.use_expected(E, 1, late=True)) == (1, 0)
    assert leases.use_expected(E, 2) == 1, "it may have expired as well"
    leases.hold(E, "read", 100)
    leases.give(E, "read")
    leases.confirm(E, "read")
    assert leases.use_expected(E, 1, late=True) == 0


def test_no_expiry_is_expected_of_an_engine_that_is_gone() -> None:
    leases = book()
    leases.forget(E)
    leases.take_over(FIRST_MS)
    assert leases.use_expected(E, 1) == 0


@given(
    answer_ms=st.integers(0, 1000),
    asked_ms=st.none() | st.integers(-2000, 0),
    rounds=st.lists(
        st.tuples(st.integers(1, 6000), st.integers(0, 3000), st.integers(0, DELIVERY_MS), st.booleans()), max_size=8
    ),
)
def test_p_keeps_the_blocks_whenever_the_book_says_so(
    answer_ms: int, asked_ms: int | None, rounds: list[tuple[int, int, int, bool]]
) -> None:
    """Against P as vLLM has it. A round: pause before a renewal, until it is sent, until P has it; whether all went."""
    leases = book(answer_ms, asked_ms)
    p_ends_ms, now_ms = DURATION_S * 1000, answer_ms  # the prefill ended at 0
    for pause_ms, sending_ms, delivery_ms, all_went in rounds:
        began_ms = now_ms + pause_ms
        leases.take_over(began_ms)
        batch = leases.take(E, began_ms)
        if batch is None:
            now_ms = began_ms
            continue
        now_ms = began_ms + sending_ms
        if all_went:
            if now_ms + delivery_ms < p_ends_ms:
                p_ends_ms = max(p_ends_ms, now_ms + delivery_ms + EXTENSION_MS)
            leases.sent(batch, now_ms)
        else:
            leases.not_sent(batch, now_ms)
        remaining_ms = leases.remaining_ms(E, L, now_ms)
        assert remaining_ms == 0 or now_ms + remaining_ms <= p_ends_ms


def test_a_lease_that_is_renewed_on_time_never_ends() -> None:
    leases = book()
    for now_ms in itertools.islice(itertools.count(0, 1000), 100):
        assert leases.take_over(now_ms) == []
        leases.sent(take(leases, now_ms), now_ms + 50)
        assert leases.remaining_ms(E, L, now_ms + 50) >= EXTENSION_MS - 1050

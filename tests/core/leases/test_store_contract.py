"""What every lease store promises: the same tests for the one in memory and the one in Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from baton_serve.core.leases.store import DEAD_ENGINE_MARGIN_MS, OUTCOME_MEMORY_MS, LeaseState, LeaseStatus, LeaseStore
from tests.kits.leases.harness import Harness

DURATION_MS = 100_000
#: A real server's clock goes on while a test runs; all durations are far above this.
SLACK_MS = 30_000
ENGINE = "e0"

HELD, DONE, RELEASED = LeaseState.HELD, LeaseState.DONE, LeaseState.RELEASED
EXPIRED, UNKNOWN = LeaseState.EXPIRED, LeaseState.UNKNOWN


def states(answers: list[LeaseStatus]) -> list[LeaseState]:
    return [answer.state for answer in answers]


def about(answer: LeaseStatus, expected_ms: int) -> bool:
    return expected_ms - SLACK_MS < answer.remaining_ms <= expected_ms


def test_granted_lease_is_held_for_its_duration(store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    [answer] = store.held(ENGINE)
    assert (answer.lease_id, answer.state) == ("a", HELD)
    assert about(answer, DURATION_MS)


def test_nothing_is_held_by_an_engine_never_heard_of(store: LeaseStore) -> None:
    assert store.held(ENGINE) == []


def test_granting_a_lease_again_never_shortens_it(store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], 3 * DURATION_MS)
    store.grant(ENGINE, ["a"], DURATION_MS)
    assert about(store.held(ENGINE)[0], 3 * DURATION_MS)


def test_renewal_moves_the_deadline_only_forward(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a", "b"], 2 * DURATION_MS)
    harness.advance(DURATION_MS)
    a, b = store.renew(ENGINE, ["a"], 2 * DURATION_MS) + store.renew(ENGINE, ["b"], DURATION_MS // 2)
    assert states([a, b]) == [HELD, HELD]
    assert about(a, 2 * DURATION_MS)
    assert about(b, DURATION_MS)


def test_renewal_answers_in_order_for_every_state_and_brings_nothing_back(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["expired"], 1)
    harness.advance(1)
    store.grant(ENGINE, ["held", "done", "released"], DURATION_MS)
    store.release(ENGINE, ["released"])
    store.reap(ENGINE, ["expired", "released"], ["done"])
    asked = ["unknown", "released", "done", "held", "expired", "held"]
    answers = store.renew(ENGINE, asked, DURATION_MS)
    assert [answer.lease_id for answer in answers] == asked
    assert states(answers) == [UNKNOWN, RELEASED, DONE, HELD, EXPIRED, HELD]
    assert [answer.lease_id for answer in store.held(ENGINE)] == ["held"]


def test_reap_ends_what_is_due_and_answers_the_rest(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["short"], DURATION_MS)
    store.grant(ENGINE, ["long"], 3 * DURATION_MS)
    harness.advance(2 * DURATION_MS)
    short, long, other = store.reap(ENGINE, ["short", "long", "other"], [])
    assert states([short, long, other]) == [EXPIRED, HELD, UNKNOWN]
    assert short.remaining_ms == 0
    assert about(long, DURATION_MS)
    assert [answer.lease_id for answer in store.held(ENGINE)] == ["long"]


def test_an_outcome_is_answered_again_when_the_first_answer_got_lost(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a", "b", "c"], DURATION_MS)
    store.release(ENGINE, ["b"])
    harness.advance(DURATION_MS)
    for _ in range(2):
        assert states(store.reap(ENGINE, ["a", "b", "c"], ["c"])) == [EXPIRED, RELEASED, DONE]


def test_an_overdue_lease_may_be_renewed_until_it_is_reaped(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS // 2)
    harness.advance(DURATION_MS // 2 + 1)
    assert store.held(ENGINE) == [LeaseStatus("a", HELD, 0)]
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [HELD]
    assert states(store.reap(ENGINE, ["a"], [])) == [HELD]


def test_released_lease_is_due_at_once_and_cannot_be_held_again(store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    store.release(ENGINE, ["a"])
    store.grant(ENGINE, ["a"], DURATION_MS)
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [RELEASED]
    assert store.held(ENGINE) == [LeaseStatus("a", RELEASED, 0)]
    assert store.reap(ENGINE, ["a"], []) == [LeaseStatus("a", RELEASED, 0)]
    store.grant(ENGINE, ["a"], DURATION_MS)
    assert store.held(ENGINE) == []


def test_done_wins_over_a_release_and_a_passed_deadline(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["released", "late"], DURATION_MS // 2)
    store.release(ENGINE, ["released"])
    harness.advance(DURATION_MS // 2)
    assert states(store.reap(ENGINE, ["released", "late"], ["released", "late"])) == [DONE, DONE]


def test_an_outcome_that_was_told_is_final(store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    store.release(ENGINE, ["a"])
    assert states(store.reap(ENGINE, ["a"], [])) == [RELEASED]
    assert states(store.reap(ENGINE, ["a"], ["a"])) == [RELEASED]


def test_done_is_remembered_even_if_the_store_had_lost_the_lease(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    harness.lose_everything()
    store.reap(ENGINE, [], ["a"])
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [DONE]


def test_releasing_what_has_ended_changes_nothing(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["expired"], 1)
    harness.advance(1)
    store.grant(ENGINE, ["done"], DURATION_MS)
    store.reap(ENGINE, ["expired"], ["done"])
    store.release(ENGINE, ["done", "expired"])
    assert states(store.renew(ENGINE, ["done", "expired"], DURATION_MS)) == [DONE, EXPIRED]
    assert store.held(ENGINE) == []


def test_a_release_that_overtakes_its_grant_ends_the_lease(store: LeaseStore) -> None:
    store.release(ENGINE, ["a"])
    assert store.held(ENGINE) == []
    assert store.grant(ENGINE, ["b", "a"], DURATION_MS) == ["a"]
    assert [answer.lease_id for answer in store.held(ENGINE)] == ["b"]
    assert states(store.renew(ENGINE, ["a", "b"], DURATION_MS)) == [RELEASED, HELD]
    assert states(store.reap(ENGINE, ["a", "b"], [])) == [RELEASED, HELD]


def test_a_release_that_the_store_forgot_before_ends_the_lease_that_is_granted_again(
    harness: Harness, store: LeaseStore
) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    harness.lose_everything()
    store.release(ENGINE, ["a"])
    assert states(store.reap(ENGINE, ["a"], [])) == [RELEASED]
    assert store.grant(ENGINE, ["a"], DURATION_MS) == ["a"]


def test_a_grant_tells_which_leases_it_does_not_hold(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["expired"], 1)
    harness.advance(1)
    assert store.grant(ENGINE, ["held", "done", "released", "reaped"], DURATION_MS) == []
    store.release(ENGINE, ["released", "reaped"])
    store.reap(ENGINE, ["expired", "reaped"], ["done"])
    asked = ["new", "reaped", "done", "released", "held", "expired"]
    assert store.grant(ENGINE, asked, DURATION_MS) == ["reaped", "done", "released", "expired"]


def test_a_release_of_an_unknown_lease_is_forgotten_after_a_minute_however_often_it_is_repeated(
    harness: Harness, store: LeaseStore
) -> None:
    store.release(ENGINE, ["a"])
    harness.advance(OUTCOME_MEMORY_MS // 2)
    store.release(ENGINE, ["a"])
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [RELEASED]
    harness.advance(OUTCOME_MEMORY_MS // 2)
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [UNKNOWN]
    assert store.grant(ENGINE, ["a"], DURATION_MS) == []
    assert states(store.held(ENGINE)) == [HELD]


def test_a_release_long_after_the_end_touches_no_other_lease_and_is_not_listed(
    harness: Harness, store: LeaseStore
) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    store.reap(ENGINE, [], ["a"])
    harness.advance(OUTCOME_MEMORY_MS)
    store.grant(ENGINE, ["b"], DURATION_MS)
    store.release(ENGINE, ["a"])
    [answer] = store.held(ENGINE)
    assert (answer.lease_id, answer.state) == ("b", HELD)
    assert about(answer, DURATION_MS)


def test_outcomes_are_forgotten_after_a_minute(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a"], DURATION_MS)
    store.reap(ENGINE, [], ["a"])
    harness.advance(OUTCOME_MEMORY_MS // 2)
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [DONE]
    harness.advance(OUTCOME_MEMORY_MS // 2)
    assert states(store.renew(ENGINE, ["a"], DURATION_MS)) == [UNKNOWN]


def test_a_dead_engine_leaves_nothing(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["a", "b"], DURATION_MS)
    store.release(ENGINE, ["b"])
    harness.advance(DURATION_MS + DEAD_ENGINE_MARGIN_MS - SLACK_MS)
    assert states(store.held(ENGINE)) == [RELEASED, HELD]
    harness.advance(SLACK_MS)
    assert store.held(ENGINE) == []


def test_members_that_their_owner_forgot_are_dropped_by_its_next_reap(harness: Harness, store: LeaseStore) -> None:
    store.grant(ENGINE, ["forgotten", "released"], 1)
    store.release(ENGINE, ["released"])
    store.grant(ENGINE, ["mine"], 10 * DURATION_MS)
    harness.advance(DEAD_ENGINE_MARGIN_MS + 1)
    store.reap(ENGINE, ["mine"], [])
    assert [answer.lease_id for answer in store.held(ENGINE)] == ["mine"]


def test_held_lists_released_ones_first_then_the_soonest_deadline(store: LeaseStore) -> None:
    for lease_id, factor in [("late", 3), ("soon", 1), ("later", 4), ("middle", 2)]:
        store.grant(ENGINE, [lease_id], factor * DURATION_MS)
    store.release(ENGINE, ["later"])
    assert [answer.lease_id for answer in store.held(ENGINE)] == ["later", "soon", "middle", "late"]


def test_engines_do_not_see_each_other(store: LeaseStore) -> None:
    store.grant("e1", ["a"], DURATION_MS)
    assert states(store.reap("e2", ["a"], [])) == [UNKNOWN]
    store.release("e2", ["a"])
    assert states(store.reap("e2", ["a"], [])) == [RELEASED]
    assert states(store.renew("e1", ["a"], DURATION_MS)) == [HELD]


def test_the_leases_of_many_engines_are_renewed_at_once(store: LeaseStore) -> None:
    many = [f"l{index}" for index in range(1203)]
    store.grant("e1", many, DURATION_MS)
    store.grant("e2", ["held", "done", "released"], DURATION_MS)
    store.reap("e1", [], [many[700]])
    store.reap("e2", [], ["done"])
    store.release("e2", ["released"])
    asked = {"e1": many, "e2": ["unknown", "held", "done", "released"], "e3": ["unknown"], "e4": []}
    answers = store.renew_all(asked, 2 * DURATION_MS)
    found = {engine_id: states(answer) for engine_id, answer in answers.items() if isinstance(answer, list)}
    assert found == {
        "e1": [HELD] * 700 + [DONE] + [HELD] * 502,
        "e2": [UNKNOWN, HELD, DONE, RELEASED],
        "e3": [UNKNOWN],
        "e4": [],
    }
    assert all([status.lease_id for status in answers[engine_id]] == list(ids) for engine_id, ids in asked.items())
    assert store.renew_all({}, DURATION_MS) == {}


def test_the_leases_of_many_engines_are_released_at_once(store: LeaseStore) -> None:
    ear = store.wakeups("e2")
    store.grant("e1", ["a", "b"], DURATION_MS)
    store.grant("e2", ["a"], DURATION_MS)
    assert store.release_all({"e1": ["b"], "e2": ["a"], "e3": ["a"]}) == {}
    assert ear.wait(10)
    assert [states(store.reap(*asked, [])) for asked in (("e1", ["a", "b"]), ("e2", ["a"]), ("e3", ["a"]))] == [
        [HELD, RELEASED],
        [RELEASED],
        [RELEASED],
    ]
    assert store.release_all({}) == {}
    ear.close()


def test_batches_may_be_larger_than_one_call_of_a_script(store: LeaseStore) -> None:
    ids = [f"l{index}" for index in range(1203)]
    assert store.grant(ENGINE, ids, DURATION_MS) == []
    assert [answer.lease_id for answer in store.renew(ENGINE, ids, DURATION_MS)] == ids
    store.release(ENGINE, ids[:700])
    answers = store.reap(ENGINE, ids, ids[1200:])
    assert states(answers) == [RELEASED] * 700 + [HELD] * 500 + [DONE] * 3
    assert store.grant(ENGINE, ids, DURATION_MS) == [*ids[:700], *ids[1200:]]
    unknown = [f"u{index}" for index in range(1203)]
    store.release(ENGINE, unknown)
    assert store.grant(ENGINE, unknown, DURATION_MS) == unknown


def test_empty_batches_are_answered_with_empty_lists(store: LeaseStore) -> None:
    assert store.grant(ENGINE, [], DURATION_MS) == []
    store.release(ENGINE, [])
    assert store.renew(ENGINE, [], DURATION_MS) == []
    assert store.reap(ENGINE, [], []) == []


@pytest.mark.parametrize("bad", ["", "a:b", "{a}", "a b", "a\n", "é", "-a", "a" * 129, "a,b", "*"])
def test_ids_that_cannot_be_ours_are_refused(store: LeaseStore, bad: str) -> None:
    verbs: list[Callable[[str, str], object]] = [
        lambda engine, lease: store.grant(engine, [lease], 1),
        lambda engine, lease: store.renew(engine, [lease], 1),
        lambda engine, lease: store.release(engine, [lease]),
        lambda engine, lease: store.reap(engine, [lease], []),
        lambda engine, lease: store.reap(engine, [], [lease]),
    ]
    for verb in verbs:
        with pytest.raises(ValueError, match="not an engine or lease id"):
            verb(ENGINE, bad)
        with pytest.raises(ValueError, match="not an engine or lease id"):
            verb(bad, "good")
    listings: list[Callable[[str], object]] = [store.held, store.wakeups]
    for listing in listings:
        with pytest.raises(ValueError, match="not an engine or lease id"):
            listing(bad)


@pytest.mark.parametrize("bad", [0, -1, 86_400_001])
def test_durations_that_make_no_sense_are_refused(store: LeaseStore, bad: int) -> None:
    with pytest.raises(ValueError, match="a lease lasts"):
        store.grant(ENGINE, ["a"], bad)
    with pytest.raises(ValueError, match="a lease lasts"):
        store.renew(ENGINE, ["a"], bad)


def test_release_wakes_the_owner_and_nothing_else_does(store: LeaseStore) -> None:
    ear = store.wakeups(ENGINE)
    store.grant(ENGINE, ["a", "b"], DURATION_MS)
    store.renew(ENGINE, ["a"], DURATION_MS)
    store.grant("other", ["x"], DURATION_MS)
    store.release("other", ["x"])
    store.reap(ENGINE, [], ["b"])
    store.release(ENGINE, ["b"])
    assert not ear.wait(0)
    store.release(ENGINE, ["a"])
    assert ear.wait(10)
    assert not ear.wait(0)
    ear.close()


def test_a_release_of_an_unknown_lease_wakes_once(store: LeaseStore) -> None:
    """P may hold the lease although the store has lost it. Nothing is new when the release is repeated."""
    ear = store.wakeups(ENGINE)
    store.release(ENGINE, ["a"])
    assert ear.wait(10)
    store.release(ENGINE, ["a"])
    assert not ear.wait(0)
    ear.close()


def test_several_releases_may_be_one_wakeup_and_none_is_missed_between_waits(store: LeaseStore) -> None:
    ear = store.wakeups(ENGINE)
    store.grant(ENGINE, ["a", "b"], DURATION_MS)
    store.release(ENGINE, ["a"])
    store.release(ENGINE, ["b"])
    assert ear.wait(10)
    ear.close()


def test_every_ear_of_an_engine_hears_its_releases(store: LeaseStore) -> None:
    ears = [store.wakeups(ENGINE) for _ in range(2)]
    store.grant(ENGINE, ["a"], DURATION_MS)
    store.release(ENGINE, ["a"])
    assert [ear.wait(10) for ear in ears] == [True, True]
    for ear in ears:
        ear.close()


def test_closing_an_ear_ends_a_wait_in_another_thread(store: LeaseStore) -> None:
    ear = store.wakeups(ENGINE)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(ear.wait(60)))
    thread.start()
    ear.close()
    ear.close()
    thread.join(10)
    assert answers == [False]
    assert not ear.wait(60)


def test_several_threads_share_a_store(store: LeaseStore) -> None:

    def work(name: str) -> None:
        for index in range(50):
            store.grant(ENGINE, [f"{name}{index}"], DURATION_MS)
            store.renew(ENGINE, [f"{name}{index}"], DURATION_MS)
            store.reap(ENGINE, [], [f"{name}{index}"] if index % 2 else [])

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.held(ENGINE)) == 4 * 25

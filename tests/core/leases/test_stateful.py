"""Random histories: the Lua scripts in a real Redis answer what the model answers."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baton_serve.core.leases.store import LeaseState, LeaseStatus
from tests.kits.leases.harness import Harness, MemoryHarness, RedisHarness

ENGINE = "e0"
#: Durations are odd multiples of this and pauses even ones; neither meets the minute of the outcomes, so that seconds
#: of real time never decide.
UNIT_MS = 24_000
#: What a test on a slow machine may take in real time.
SLACK_MS = 10_000

ids = st.lists(st.sampled_from("abcd"), max_size=4, unique=True)
durations = st.integers(0, 4).map(lambda n: (2 * n + 1) * UNIT_MS)
pauses = st.integers(1, 4).map(lambda n: 2 * n * UNIT_MS)
steps = st.one_of(
    st.tuples(st.just("grant"), ids, durations),
    st.tuples(st.just("renew"), ids, durations),
    st.tuples(st.just("release"), ids, st.just(0)),
    st.tuples(st.just("reap"), ids, st.just(0)),
    st.tuples(st.just("done"), ids, st.just(0)),
    st.tuples(st.just("advance"), st.just([]), pauses),
)


def answer(harness: Harness, step: tuple[str, list[str], int]) -> list[LeaseStatus]:
    verb, lease_ids, time_ms = step
    store = harness.store
    if verb == "grant":  # which returns those that are refused
        refused = store.grant(ENGINE, lease_ids, time_ms)
        return [LeaseStatus(lease_id, LeaseState.RELEASED) for lease_id in refused]
    if verb == "renew":
        return store.renew(ENGINE, lease_ids, time_ms)
    if verb == "release":
        store.release(ENGINE, lease_ids)
    elif verb == "reap":
        return store.reap(ENGINE, lease_ids, [])
    elif verb == "done":
        return store.reap(ENGINE, lease_ids[1:], lease_ids[:2])
    else:
        harness.advance(time_ms)
    return []


def same(ours: list[LeaseStatus], theirs: list[LeaseStatus]) -> bool:
    return len(ours) == len(theirs) and all(
        (a.lease_id, a.state) == (b.lease_id, b.state) and abs(a.remaining_ms - b.remaining_ms) < SLACK_MS
        for a, b in zip(ours, theirs, strict=True)
    )


def by_id(answers: list[LeaseStatus]) -> list[LeaseStatus]:
    return sorted(answers, key=lambda status: status.lease_id)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=25))
@example(history=[("grant", ["a"], 24_000), ("advance", [], 48_000), ("grant", [], 24_000), ("advance", [], 48_000)])
@example(history=[("grant", ["a"], 72_000), ("grant", ["b"], 24_000), ("advance", [], 96_000), ("reap", [], 0)])
@example(history=[("release", ["a"], 0), ("advance", [], 48_000), ("grant", ["b", "a"], 72_000), ("reap", ["a"], 0)])
@example(history=[("release", ["a"], 0), ("advance", [], 96_000), ("grant", ["a"], 72_000), ("release", ["a"], 0)])
def test_the_scripts_and_the_model_agree(redis_url: str, history: list[tuple[str, list[str], int]]) -> None:
    model, harness = MemoryHarness(), RedisHarness(redis_url)
    harness.lose_everything()
    for step in history:
        expected, got = answer(model, step), answer(harness, step)
        assert same(got, expected), (step, got, expected)
        listed, known = by_id(harness.store.held(ENGINE)), by_id(model.store.held(ENGINE))
        assert same(listed, known), (step, listed, known)
    harness.close()

"""The table of a request's states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.request.states import LIVE, TABLE, Event, IllegalEvent, RequestProgress, State

USUAL = [Event.PREFILL_SENT, Event.PREFILLED, Event.DECODE_SENT, Event.FIRST_BYTE, Event.FINISHED]


def test_the_times_of_a_requests_usual_states_add_up() -> None:
    progress = RequestProgress(10.0)
    for i, event in enumerate(USUAL):
        progress.on(event, 11.0 + i)
    assert progress.state is State.DONE
    assert progress.spent_s == {
        State.QUEUED: 1.0,
        State.PREFILLING: 1.0,
        State.HELD: 1.0,
        State.READING: 1.0,
        State.DECODING: 1.0,
    }


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_any_events_follow_the_table_or_change_nothing(sequence: list[Event]) -> None:
    progress = RequestProgress(0.0)
    for now_s, event in enumerate(sequence):
        before, spent = progress.state, dict(progress.spent_s)
        expected = TABLE[before].get(event)
        if expected is None:
            with pytest.raises(IllegalEvent) as caught:
                progress.on(event, now_s)
            assert (caught.value.state, caught.value.event) == (before, event)
            assert (progress.state, progress.spent_s) == (before, spent)
        else:
            assert progress.on(event, now_s) is expected is progress.state
    assert sum(progress.spent_s.values()) <= len(sequence)


@pytest.mark.parametrize("state", LIVE)
def test_every_live_state_can_fail_and_be_aborted(state: State) -> None:
    assert TABLE[state][Event.FAILED] is State.FAILED
    assert TABLE[state][Event.ABORTED] is State.ABORTED


def test_every_state_can_be_reached_and_ends_are_ends() -> None:
    reached = {State.QUEUED}
    while True:
        more = {following for state in reached for following in TABLE[state].values()} | reached
        if more == reached:
            break
        reached = more
    assert reached == set(State)
    assert set(State) - set(LIVE) == {State.DONE, State.FAILED, State.ABORTED}

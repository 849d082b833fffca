"""The table that says whether another router lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.router import RouterRecord
from baton_serve.router.peers.failure_detector import (
    TABLE,
    DetectorEvent,
    DetectorState,
    IllegalDetectorEvent,
    PeerRouter,
)

RECORD = RouterRecord(router_id="a" * 12, url="http://h:1", internal_url="http://h:2")
E, S = DetectorEvent, DetectorState


def after(*events: DetectorEvent) -> PeerRouter:
    peer = PeerRouter(RECORD, 0.0)
    for now_s, event in enumerate(events, start=1):
        peer.on(event, float(now_s))
    return peer


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((E.OPENED, E.BROKE, E.REFUSED), id="killed"),
        pytest.param((E.OPENED, E.VANISHED, E.REFUSED), id="left in order"),
        pytest.param((E.OPENED, E.BROKE, E.NO_ANSWER, E.REFUSED), id="killed, and its machine was slow"),
        pytest.param((E.OPENED, E.BROKE, E.NO_ANSWER, E.VANISHED), id="network gone, then its presence"),
        pytest.param((E.OPENED, E.VANISHED, E.NO_ANSWER), id="stopped: presence first, then no answer"),
        pytest.param((E.REFUSED, E.VANISHED), id="never met"),
        pytest.param((E.VANISHED, E.REFUSED), id="gone before it was met"),
    ],
)
def test_a_router_that_nothing_speaks_for_any_more_is_dead(events: tuple[DetectorEvent, ...]) -> None:
    assert not after(*events[:-1]).dead
    peer = after(*events)
    assert peer.dead
    assert peer.since_s == len(events)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((E.OPENED, E.VANISHED, E.OPENED), id="it answers, whatever the registry says"),
        pytest.param((E.OPENED, E.BROKE, E.OPENED), id="only the link broke"),
        pytest.param((E.OPENED, E.BROKE, E.NO_ANSWER, E.NO_ANSWER), id="out of reach, but present"),
        pytest.param((E.REFUSED, E.REFUSED, E.NO_ANSWER), id="a wrong address, but present"),
    ],
)
def test_a_router_that_something_still_speaks_for_is_alive(events: tuple[DetectorEvent, ...]) -> None:
    assert not after(*events).dead


def test_a_router_that_announces_itself_again_is_present_again() -> None:
    peer = after(E.OPENED, E.VANISHED, E.OPENED)
    assert not peer.announced
    peer.seen()
    peer.on(E.BROKE, 9.0)
    assert peer.on(E.NO_ANSWER, 10.0) is S.SILENT


@given(st.lists(st.sampled_from([*DetectorEvent, None]), max_size=30))
def test_any_events_follow_the_table_or_change_nothing(events: list[DetectorEvent | None]) -> None:
    peer, deaths = PeerRouter(RECORD, 0.0), 0
    for now_s, event in enumerate(events, start=1):
        before, since_s, announced = peer.state, peer.since_s, peer.announced
        if event is None:
            peer.seen()
        elif event not in TABLE[before]:
            with pytest.raises(IllegalDetectorEvent):
                peer.on(event, float(now_s))
            assert (peer.state, peer.since_s, peer.announced) == (before, since_s, announced)
        else:
            peer.on(event, float(now_s))
            assert peer.since_s == (since_s if peer.state is before else now_s)
            deaths += peer.dead and before is not S.DEAD
            assert not (peer.state in {S.UNMET, S.SILENT} and not peer.announced), "nothing speaks for it"
    assert deaths == peer.dead

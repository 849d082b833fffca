"""Counting what ranks report: any order, twice, too late, and never more than may be open."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from baton_serve.workers.sharding.gather import Gather, GatherEvent

OVER = {GatherEvent.DONE, GatherEvent.ENDED}
KEYS = st.integers(0, 3)
MEMBERS = st.integers(0, 3)


@dataclass
class Transfer:
    """One ``open`` and all that was said about it since."""

    num_members: int
    parts: dict[int, bool] = field(default_factory=dict)
    events: list[GatherEvent] = field(default_factory=list)

    def tell(self, member: int, ok: bool, event: GatherEvent | None) -> bool:
        """What the contract says of this report; True if the transfer is over."""
        assert not self.events or self.events[-1] not in OVER, "something was said after the end"
        if member in self.parts:
            assert event is None, "a part was counted twice"
            return False
        assert event is not None
        self.parts[member] = ok
        self.events.append(event)
        assert (event in OVER) == (len(self.parts) == self.num_members), "it ends with its last part"
        if event in OVER:
            assert (event is GatherEvent.DONE) == all(self.parts.values())
        else:
            is_first_failure = not ok and list(self.parts.values()).count(False) == 1
            assert (event is GatherEvent.FAILED) == is_first_failure
        assert self.events.count(GatherEvent.FAILED) <= 1
        return event in OVER


class Gathering(RuleBasedStateMachine):
    """Ranks say anything at any time; only what is open counts."""

    @initialize(max_open=st.sampled_from([None, 1, 2, 3]))
    def start(self, max_open: int | None) -> None:
        self.gather: Gather[int] = Gather(max_open)
        self.max_open = max_open
        #: In the order they were opened.
        self.open_now: dict[int, Transfer] = {}
        self.num_over = 0

    @rule(key=KEYS, num_members=st.integers(1, 4))
    def open(self, key: int, num_members: int) -> None:
        self.gather.open(key, num_members)
        if key in self.open_now:
            return
        if self.max_open is not None and len(self.open_now) == self.max_open:
            del self.open_now[next(iter(self.open_now))]
        self.open_now[key] = Transfer(num_members)

    @rule(key=KEYS, member=MEMBERS, ok=st.booleans())
    def report(self, key: int, member: int, ok: bool) -> None:
        self.check(key, member, ok, self.gather.report(key, member, ok=ok))

    def check(self, key: int, member: int, ok: bool, event: GatherEvent | None) -> None:
        transfer = self.open_now.get(key)
        if transfer is None:
            assert event is None, "a transfer that is not open was reported"
        elif transfer.tell(member, ok, event):
            del self.open_now[key]
            self.num_over += 1

    @invariant()
    def is_bounded(self) -> None:
        if hasattr(self, "gather"):
            assert len(self.gather) == len(self.open_now)
            assert self.max_open is None or len(self.gather) <= self.max_open

    def teardown(self) -> None:
        """Once every member has reported, nothing is open."""
        if not hasattr(self, "gather"):
            return
        for member in range(4):
            for key in list(self.open_now):
                self.report(key, member, False)
        assert not self.open_now
        assert len(self.gather) == 0


Gathering.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGathering = Gathering.TestCase


def test_a_failure_is_told_before_the_end_if_there_is_a_before() -> None:
    gather: Gather[str] = Gather()
    gather.open("read", 3)
    heard = [gather.report("read", member, ok=member != 1) for member in (0, 1, 2)]
    assert heard == [GatherEvent.WAITING, GatherEvent.FAILED, GatherEvent.ENDED]
    gather.open("read", 1)
    assert gather.report("read", 5, ok=False) is GatherEvent.ENDED


def test_beyond_the_bound_the_oldest_is_forgotten() -> None:
    gather: Gather[int] = Gather(max_open=2)
    for key in range(3):
        gather.open(key, 2)
        gather.report(key, 0)
    assert [gather.report(key, 1) for key in range(3)] == [None, GatherEvent.DONE, GatherEvent.DONE]
    assert repr(gather) == "<Gather 0 open>"

"""Counting what ranks report: any order, twice, too late, lost ranks, and never more than may be open."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workers.sharding.gather import Gather, Verdict

OVER = {Verdict.DONE, Verdict.ENDED}
KEYS = st.integers(0, 3)
MEMBERS = st.integers(0, 3)


@dataclass
class Transfer:
    """One ``open`` and all that was said about it since."""

    num_members: int
    parts: dict[int, bool] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def tell(self, member: int, ok: bool, verdict: Verdict | None) -> bool:
        """What the contract says of this report; True if the transfer is over."""
        assert not self.verdicts or self.verdicts[-1] not in OVER, "something was said after the end"
        if member in self.parts:
            assert verdict is None, "a part was counted twice"
            return False
        assert verdict is not None
        self.parts[member] = ok
        self.verdicts.append(verdict)
        assert (verdict in OVER) == (len(self.parts) == self.num_members), "it ends with its last part"
        if verdict in OVER:
            assert (verdict is Verdict.DONE) == all(self.parts.values())
        else:
            is_first_failure = not ok and list(self.parts.values()).count(False) == 1
            assert (verdict is Verdict.FAILED) == is_first_failure
        assert self.verdicts.count(Verdict.FAILED) <= 1
        return verdict in OVER


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

    def check(self, key: int, member: int, ok: bool, verdict: Verdict | None) -> None:
        transfer = self.open_now.get(key)
        if transfer is None:
            assert verdict is None, "a transfer that is not open was reported"
        elif transfer.tell(member, ok, verdict):
            del self.open_now[key]
            self.num_over += 1

    @rule(member=MEMBERS)
    def lose(self, member: int) -> None:
        """As if the member had said of everything that it failed."""
        verdicts = self.gather.lose(member)
        told = dict(verdicts)
        assert len(told) == len(verdicts)
        assert told.keys() <= self.open_now.keys()
        for key in list(self.open_now):
            self.check(key, member, False, told.get(key))

    @precondition(lambda self: self.open_now)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.open_now)))
        self.gather.forget(key)
        del self.open_now[key]
        assert self.gather.report(key, 0) is None

    @invariant()
    def is_bounded(self) -> None:
        if hasattr(self, "gather"):
            assert len(self.gather) == len(self.open_now)
            assert self.max_open is None or len(self.gather) <= self.max_open

    def teardown(self) -> None:
        """Once everybody has spoken, or is lost, nothing is open."""
        if not hasattr(self, "gather"):
            return
        for member in range(4):
            self.lose(member)
        assert not self.open_now
        assert len(self.gather) == 0


Gathering.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGathering = Gathering.TestCase


@given(data=st.data(), num_keys=st.integers(1, 3), num_members=st.integers(1, 4))
def test_any_order_of_any_reports_ends_every_transfer_once(
    data: st.DataObject, num_keys: int, num_members: int
) -> None:
    """Every part comes once or more; the transfers are told apart, and the order within each does not matter."""
    parts = {
        (key, member): data.draw(st.sampled_from([True, True, False]))
        for key in range(num_keys)
        for member in range(num_members)
    }
    again = data.draw(st.lists(st.sampled_from(sorted(parts)), max_size=6))
    gather: Gather[int] = Gather()
    for key in range(num_keys):
        gather.open(key, num_members)
    verdicts: dict[int, list[Verdict]] = {key: [] for key in range(num_keys)}
    for key, member in data.draw(st.permutations([*parts, *again])):
        verdict = gather.report(key, member, ok=parts[key, member])
        if verdict is not None:
            verdicts[key].append(verdict)
    assert len(gather) == 0
    for key, heard in verdicts.items():
        ok = [parts[key, member] for member in range(num_members)]
        assert len(heard) == num_members
        assert heard[-1] is (Verdict.DONE if all(ok) else Verdict.ENDED)
        assert not OVER & set(heard[:-1])
        # A failure that is also the last part is told as the end only.
        assert heard.count(Verdict.FAILED) <= (not all(ok))


def test_a_failure_is_told_before_the_end_if_there_is_a_before() -> None:
    gather: Gather[str] = Gather()
    gather.open("read", 3)
    heard = [gather.report("read", member, ok=member != 1) for member in (0, 1, 2)]
    assert heard == [Verdict.WAITING, Verdict.FAILED, Verdict.ENDED]
    gather.open("read", 1)
    assert gather.report("read", 5, ok=False) is Verdict.ENDED


def test_a_transfer_may_be_opened_again_after_its_end_only() -> None:
    gather: Gather[str] = Gather()
    gather.open("read", 2)
    assert gather.report("read", 0) is Verdict.WAITING
    gather.open("read", 1)
    assert gather.report("read", 1) is Verdict.DONE
    gather.open("read", 1)
    assert gather.report("read", 1) is Verdict.DONE


def test_beyond_the_bound_the_oldest_is_forgotten() -> None:
    gather: Gather[int] = Gather(max_open=2)
    for key in range(3):
        gather.open(key, 2)
        gather.report(key, 0)
    assert [gather.report(key, 1) for key in range(3)] == [None, Verdict.DONE, Verdict.DONE]
    assert repr(gather) == "<Gather 0 open>"


def test_a_transfer_has_members() -> None:
    with pytest.raises(ValueError, match="a member"):
        Gather[int]().open(1, 0)

"""The block read's table, and the machine around it, without NIXL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.transfer import read_machine
from workers.transfer.read_machine import ENDS, TABLE, VERSIONS, IllegalReadEventError, ReadMachine, ReadState


def reading(num_pieces: int = 1, window: int = 4, *, fence: bool = True) -> ReadMachine:
    """A machine with as many pieces in flight as it wants."""
    machine = ReadMachine(num_pieces, window=window, fence=fence)
    while machine.next_post() is not None:
        pass
    return machine


def checking() -> ReadMachine:
    machine = reading()
    machine.arrived()
    assert machine.next_post() == VERSIONS
    return machine


def test_the_tables_text_is_the_table() -> None:
    """The docstring's rows are rows of the table, and the rest of the table changes nothing."""
    lines = (line.split() for line in (read_machine.__doc__ or "").splitlines())
    written = {tuple(words[:3]) for words in lines if len(words) >= 3 and words[0] in ReadState.__members__}
    real = {(state.name, event.name, following.name) for (state, event), following in TABLE.items()}
    assert written <= real
    assert all(before == after for before, _, after in real - written)


def test_a_read_is_done_when_the_versions_are_equal() -> None:
    machine = checking()
    machine.compared(equal=True)
    assert (machine.state, machine.ended, machine.tells_peer) == (ReadState.DONE, True, True)


def test_a_read_is_stale_when_they_are_not_and_the_peer_may_let_go() -> None:
    machine = checking()
    machine.compared(equal=False)
    assert (machine.state, machine.tells_peer) == (ReadState.STALE, True)


def test_versions_are_read_only_after_all_the_data() -> None:
    machine = ReadMachine(3, window=2)
    assert [machine.next_post() for _ in range(3)] == [0, 1, None]
    machine.arrived()
    assert [machine.next_post() for _ in range(2)] == [2, None]
    machine.arrived()
    assert machine.next_post() is None
    machine.arrived()
    assert [machine.next_post() for _ in range(2)] == [VERSIONS, None]


def test_without_pieces_it_is_done_at_once() -> None:
    machine = ReadMachine(0, window=1)
    assert machine.next_post() is None
    assert (machine.state, machine.tells_peer) == (ReadState.DONE, True)


def test_without_the_fence_nobody_reads_versions() -> None:
    machine = reading(2, fence=False)
    machine.arrived()
    machine.arrived()
    assert (machine.state, machine.next_post()) == (ReadState.DONE, None)


def test_a_cancelled_read_ends_with_its_last_transfer() -> None:
    machine = reading(5, window=2)
    machine.cancel()
    assert (machine.state, machine.next_post()) == (ReadState.CANCELLING, None)
    machine.arrived()
    assert not machine.ended
    machine.cancel()
    machine.broke("too late to matter")
    assert (machine.state, machine.tells_peer) == (ReadState.CANCELLED, False)


def test_cancelled_before_anything_was_posted_it_is_over() -> None:
    machine = ReadMachine(1, window=1)
    machine.cancel()
    assert machine.state is ReadState.CANCELLED


def test_cancelled_while_checking_it_is_not_done_though_versions_are_equal() -> None:
    machine = checking()
    machine.cancel()
    assert not machine.ended
    machine.compared(equal=True)
    assert machine.state is ReadState.CANCELLED


def test_a_failed_read_ends_with_its_last_transfer_and_the_peer_is_not_told() -> None:
    machine = reading(3, window=3)
    machine.broke("first")
    machine.arrived()
    machine.cancel()
    assert (machine.state, machine.next_post()) == (ReadState.FAILING, None)
    machine.broke("second")
    assert (machine.state, machine.error, machine.tells_peer) == (ReadState.FAILED, "first", False)


def test_failed_while_checking() -> None:
    machine = checking()
    machine.broke("gone")
    assert machine.state is ReadState.FAILED


@pytest.mark.parametrize("end", sorted(ENDS))
def test_a_late_cancel_changes_nothing(end: ReadState) -> None:
    machine = reading()
    machine.state = end
    machine.cancel()
    assert machine.state is end


def unposted() -> ReadMachine:
    return ReadMachine(1, window=1)


def unposted_check() -> ReadMachine:
    machine = reading()
    machine.arrived()
    return machine


@pytest.mark.parametrize("make", [unposted, unposted_check])
def test_nothing_ends_that_is_not_in_flight(make: Callable[[], ReadMachine]) -> None:
    machine = make()
    before = repr(machine)
    with pytest.raises(IllegalReadEventError):
        machine.arrived()
    with pytest.raises(IllegalReadEventError):
        machine.broke("x")
    with pytest.raises(IllegalReadEventError):
        machine.compared(equal=True)
    assert repr(machine) == before


@given(st.integers(0, 6), st.integers(1, 4), st.booleans(), st.data())
def test_whatever_happens_it_ends_once_nothing_is_in_flight(
    num_pieces: int, window: int, fence: bool, data: st.DataObject
) -> None:
    """A random run: never more in flight than the window, never ended while something is, always ended at last."""
    machine = ReadMachine(num_pieces, window=window, fence=fence)
    in_flight: list[int] = []
    troubled = False
    for _ in range(60):
        if machine.ended:
            break
        choice = data.draw(st.sampled_from(["post", "post", "land", "land", "land", "break", "cancel"]))
        if choice == "cancel" and data.draw(st.integers(0, 9)) == 0:
            machine.cancel()
            troubled = True
        elif choice == "post":
            piece = machine.next_post()
            in_flight += [] if piece is None else [piece]
        elif in_flight and choice == "break" and data.draw(st.integers(0, 9)) == 0:
            in_flight.pop()
            machine.broke("broken")
            troubled = True
        elif in_flight and choice == "land":
            if in_flight.pop(0) == VERSIONS:
                machine.compared(equal=True)
            else:
                machine.arrived()
        assert len(in_flight) <= window
        assert machine.ended <= (not in_flight)
    while not machine.ended:
        piece = machine.next_post()
        in_flight += [] if piece is None else [piece]
        if in_flight.pop(0) == VERSIONS:
            machine.compared(equal=True)
        else:
            machine.arrived()
    assert (machine.state is ReadState.DONE) is not (troubled and num_pieces > 0)

"""The block read's table, and the machine around it, without NIXL."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.transfer.reads import read_machine
from baton_serve.workers.transfer.reads.read_machine import (
    ENDS,
    TABLE,
    IllegalReadEventError,
    Post,
    PostKind,
    ReadMachine,
    ReadState,
)


def data(number: int) -> Post:
    return Post(PostKind.DATA, number)


def versions(number: int) -> Post:
    return Post(PostKind.VERSIONS, number)


def reading(num_pieces: int = 1, window: int = 4, num_tables: int = 1) -> ReadMachine:
    """A machine with as many pieces in flight as it wants."""
    machine = ReadMachine(num_pieces, num_tables=num_tables, window=window)
    while machine.next_post() is not None:
        pass
    return machine


def checking(num_tables: int = 1) -> ReadMachine:
    """A machine with all tables in flight."""
    machine = reading(num_tables=num_tables)
    machine.arrived()
    assert [machine.next_post() for _ in range(num_tables)] == [versions(i) for i in range(num_tables)]
    assert machine.next_post() is None
    return machine


def test_the_tables_text_is_the_table() -> None:
    """The docstring's rows are rows of the table, and the rest of the table changes nothing."""
    lines = (line.split() for line in (read_machine.__doc__ or "").splitlines())
    written = {tuple(words[:3]) for words in lines if len(words) >= 3 and words[0] in ReadState.__members__}
    real = {(state.name, event.name, following.name) for (state, event), following in TABLE.items()}
    assert written <= real
    assert all(before == after for before, _, after in real - written)


def test_versions_are_read_only_after_all_the_data() -> None:
    machine = ReadMachine(3, num_tables=2, window=2)
    assert [machine.next_post() for _ in range(3)] == [data(0), data(1), None]
    machine.arrived()
    assert [machine.next_post() for _ in range(2)] == [data(2), None]
    machine.arrived()
    assert machine.next_post() is None
    machine.arrived()
    assert [machine.next_post() for _ in range(3)] == [versions(0), versions(1), None]


def test_all_tables_are_in_flight_at_once_whatever_the_window() -> None:
    machine = reading(1, window=1, num_tables=5)
    machine.arrived()
    assert [machine.next_post() for _ in range(6)] == [*(versions(i) for i in range(5)), None]


@pytest.mark.parametrize("answers", [answers for n in (1, 3) for answers in itertools.product([True, False], repeat=n)])
def test_one_overwritten_table_makes_it_stale_once_all_are_compared(answers: tuple[bool, ...]) -> None:
    """The peer is told, and may let go, in both cases."""
    machine = checking(num_tables=len(answers))
    for kept in answers:
        assert not machine.ended
        machine.compared(kept=kept)
    assert machine.state is (ReadState.DONE if all(answers) else ReadState.STALE)
    assert machine.ended and machine.tells_peer


def test_a_table_compared_before_the_next_is_posted_does_not_end_it() -> None:
    """Over shared memory a transfer has often ended when the call that posts it returns."""
    machine = reading(num_tables=2)
    machine.arrived()
    for index in range(2):
        assert (machine.state, machine.next_post()) == (ReadState.CHECKING, versions(index))
        machine.compared(kept=True)
    assert machine.state is ReadState.DONE


def test_a_table_that_cannot_be_read_fails_it_when_the_others_have_ended() -> None:
    machine = checking(num_tables=3)
    machine.compared(kept=False)
    machine.broke("gone")
    assert not machine.ended
    machine.compared(kept=True)
    assert (machine.state, machine.error) == (ReadState.FAILED, "gone")


def test_without_pieces_it_is_done_at_once() -> None:
    machine = ReadMachine(0, num_tables=1, window=1)
    assert machine.next_post() is None
    assert (machine.state, machine.tells_peer) == (ReadState.DONE, True)


def test_without_the_fence_nobody_reads_versions() -> None:
    machine = reading(2, num_tables=0)
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
    machine = ReadMachine(1, num_tables=1, window=1)
    machine.cancel()
    assert machine.state is ReadState.CANCELLED


def test_cancelled_while_checking_it_is_not_done_though_versions_are_as_promised() -> None:
    machine = checking()
    machine.cancel()
    assert not machine.ended
    machine.compared(kept=True)
    assert machine.state is ReadState.CANCELLED


def test_a_failed_read_ends_with_its_last_transfer_and_the_peer_is_not_told() -> None:
    machine = reading(3, window=3)
    machine.broke("first")
    machine.arrived()
    machine.cancel()
    assert (machine.state, machine.next_post()) == (ReadState.FAILING, None)
    machine.broke("second")
    assert (machine.state, machine.error, machine.tells_peer) == (ReadState.FAILED, "first", False)


@pytest.mark.parametrize("end", sorted(ENDS))
def test_a_late_cancel_changes_nothing(end: ReadState) -> None:
    machine = reading()
    machine.state = end
    machine.cancel()
    assert machine.state is end


def unposted() -> ReadMachine:
    return ReadMachine(1, num_tables=1, window=1)


def unposted_check() -> ReadMachine:
    machine = reading()
    machine.arrived()
    return machine


def test_data_and_versions_are_not_taken_for_each_other() -> None:
    with pytest.raises(IllegalReadEventError, match="arrived already"):
        checking().arrived()
    with pytest.raises(IllegalReadEventError, match="before they were read"):
        reading().compared(kept=True)


@pytest.mark.parametrize("make", [unposted, unposted_check])
def test_nothing_ends_that_is_not_in_flight(make: Callable[[], ReadMachine]) -> None:
    machine = make()
    before = repr(machine)
    with pytest.raises(IllegalReadEventError):
        machine.arrived()
    with pytest.raises(IllegalReadEventError):
        machine.broke("x")
    with pytest.raises(IllegalReadEventError):
        machine.compared(kept=True)
    assert repr(machine) == before


def land(machine: ReadMachine, post: Post) -> None:
    if post.kind is PostKind.VERSIONS:
        machine.compared(kept=True)
    else:
        machine.arrived()


@given(st.integers(0, 6), st.integers(1, 4), st.integers(0, 3), st.data())
def test_whatever_happens_it_ends_once_nothing_is_in_flight(
    num_pieces: int, window: int, num_tables: int, draws: st.DataObject
) -> None:
    """A random run: never more in flight than the window, never ended while something is, always ended at last."""
    machine = ReadMachine(num_pieces, num_tables=num_tables, window=window)
    in_flight: list[Post] = []
    troubled = False
    for _ in range(60):
        if machine.ended:
            break
        choice = draws.draw(st.sampled_from(["post", "post", "land", "land", "land", "break", "cancel"]))
        if choice == "cancel" and draws.draw(st.integers(0, 9)) == 0:
            machine.cancel()
            troubled = True
        elif choice == "post":
            post = machine.next_post()
            in_flight += [] if post is None else [post]
        elif in_flight and choice == "break" and draws.draw(st.integers(0, 9)) == 0:
            in_flight.pop()
            machine.broke("broken")
            troubled = True
        elif in_flight and choice == "land":
            land(machine, in_flight.pop(0))
        assert sum(post.kind is PostKind.DATA for post in in_flight) <= window
        assert len({post.kind for post in in_flight}) <= 1, "data and versions at once"
        assert machine.ended <= (not in_flight)
    while not machine.ended:
        post = machine.next_post()
        in_flight += [] if post is None else [post]
        land(machine, in_flight.pop(0))
    assert (machine.state is ReadState.DONE) is not (troubled and num_pieces > 0)

"""The table of states, the queue, the sequence."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.workers.engine.errors import IllegalTransitionError
from baton_serve.workers.engine.sequences.by_urgency import ByUrgency
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import ENDED, TABLE, Event, State, next_state
from tests.kits.engine.requests import config, request


def sequence(seq_id: int, *, prompt: list[int] | None = None, priority: int = 0) -> Sequence:
    return Sequence(seq_id, request(str(seq_id), prompt or [1], priority=priority), config())


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_is_in_the_table_or_refused(state: State, event: Event) -> None:
    seq = sequence(1)
    seq.state = state
    if event in TABLE[state]:
        assert next_state(state, event) is TABLE[state][event]
        return
    with pytest.raises(IllegalTransitionError, match=f"{state} cannot {event}"):
        seq.advance(event)
    assert seq.state is state


def test_every_state_leads_to_an_end_and_can_be_aborted() -> None:
    for state in set(State) - ENDED:
        reachable, frontier = {state}, [state]
        while frontier:
            following = set(TABLE[frontier.pop()].values()) - reachable
            reachable |= following
            frontier += following
        assert reachable & ENDED, state
        if state not in (State.CLOSING, State.FINISHING):
            assert {Event.ABORT, Event.ABORT_BUSY} & TABLE[state].keys(), state
    assert {State.FINISHED, State.HANDED_OFF, State.ABORTED, State.FAILED} == ENDED


def test_every_state_but_the_first_ones_is_reached_by_an_event() -> None:
    reached = {after for events in TABLE.values() for after in events.values()}
    assert set(State) - reached == {State.AWAITING_HANDOFF}


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=20))
def test_the_queue_gives_lower_priority_then_older(entries: list[tuple[int, bool]]) -> None:
    queue, stay = ByUrgency(), []
    seqs = [sequence(number, priority=priority) for number, (priority, _) in enumerate(entries)]
    for seq in seqs:
        queue.add(seq)
    for seq, (_, leaves) in zip(seqs, entries, strict=True):
        if leaves:
            queue.discard(seq)
        else:
            stay.append(seq)
    assert len(queue) == len(stay)
    assert [seq in queue for seq in seqs] == [not leaves for _, leaves in entries]
    in_order = list(queue)
    assert (queue.first, queue.last if stay else None) == (
        in_order[0] if stay else None,
        in_order[-1] if stay else None,
    )
    assert [seq.id for seq in in_order] == [seq.id for seq in sorted(stay, key=lambda s: (s.request.priority, s.id))]


def test_the_queue_takes_back_who_was_removed() -> None:
    queue, old, young = ByUrgency(), sequence(1), sequence(2)
    queue.add(old)
    queue.add(young)
    queue.discard(sequence(3))
    queue.discard(old)
    assert queue.first is young
    queue.add(old)
    assert queue.first is old
    assert young in queue


def test_the_queue_keeps_nothing_of_who_left() -> None:
    queue, seqs = ByUrgency(), [sequence(number) for number in range(3)]
    for seq in seqs:
        queue.add(seq)
    queue.discard(seqs[1])
    # Not a weak reference: what a heap would still hold is found by what it refers to.
    assert seqs[1] not in gc.get_referents(*gc.get_referents(queue))
    assert seqs[2] in gc.get_referents(*gc.get_referents(queue))


@pytest.mark.parametrize(("num_tokens", "matchable", "needed"), [(1, 0, 1), (4, 0, 1), (5, 1, 2), (8, 1, 2), (9, 2, 3)])
def test_the_block_of_the_last_token_is_never_matched(num_tokens: int, matchable: int, needed: int) -> None:
    seq = sequence(1, prompt=list(range(num_tokens)))
    assert (seq.num_matchable, seq.num_blocks_needed) == (matchable, needed)


def test_contents_grow_with_the_tokens() -> None:
    seq = sequence(1, prompt=[1, 2, 3, 4])
    (first,) = seq.block_hashes(1)
    seq.tokens += [5, 6, 7, 8]
    assert seq.block_hashes(2)[0] == first
    assert seq.block_hashes(2) == sequence(2, prompt=[1, 2, 3, 4, 5, 6, 7, 8]).block_hashes(2)


@pytest.mark.parametrize(
    ("max_tokens", "hand_off", "limit"), [(4, False, 5), (63, False, 64), (1000, False, 64), (1, True, 64)]
)
def test_how_many_tokens_a_sequence_may_have(max_tokens: int, hand_off: bool, limit: int) -> None:
    assert Sequence(1, request("a", [1], max_tokens, hand_off=hand_off), config()).max_num_tokens == limit

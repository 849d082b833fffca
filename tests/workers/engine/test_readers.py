"""A lease that several choices read: it is over when each of them has read, wherever and however often."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.handoff import reader_name
from baton_serve.workers.engine.api import FinishReason, HandOff, TokenOutput
from baton_serve.workers.engine.blocks.lease_index import Grant, LeaseIndex
from tests.kits.engine.requests import expected
from tests.kits.engine.scheduler_bench import Bench

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def hand_off(bench: Bench, num_readers: int) -> HandOff:
    seq = bench.add("p", PROMPT, 1, hand_off=True, num_readers=num_readers)
    bench.run()
    (output,) = bench.outputs[seq]
    assert isinstance(output, TokenOutput) and output.hand_off is not None
    return output.hand_off


def test_a_lease_is_over_when_each_reader_has_read() -> None:
    index = LeaseIndex()
    index.add("l", Grant("r", [1], num_readers=3))
    assert [index.note_read(name) for name in ("l_2", "l_2", "l", "l_1")] == [None, None, None, "l"]
    assert index.has_readers("l") and index.has_readers("l_1") and not index.has_readers("other")


@pytest.mark.parametrize("name", ["l_3", "l_99", "other", "other_1", "l_x", "_1", "l_10000"])
def test_who_is_no_reader_ends_nothing(name: str) -> None:
    index = LeaseIndex()
    index.add("l", Grant("r", [1], num_readers=3))
    assert index.note_read(name) == name
    assert index.get("l") == Grant("r", [1], num_readers=3)


def test_a_lease_of_one_reader_is_over_at_once() -> None:
    index = LeaseIndex()
    index.add("l", Grant("r", [1]))
    assert (index.note_read("l_0"), index.note_read("l_1"), index.note_read("l")) == ("l", "l_1", "l")
    assert not index.has_readers("l")


@pytest.mark.parametrize(("num_readers", "is_kept"), [(1, False), (2, True)])
def test_a_first_token_that_ends_one_choice_keeps_the_blocks_for_the_others(num_readers: int, is_kept: bool) -> None:
    bench = Bench()
    stop = frozenset(expected(PROMPT, 1))
    seq = bench.add("a", PROMPT, 1, hand_off=True, num_readers=num_readers, stop_token_ids=stop)
    bench.step()
    (output,) = bench.outputs[seq]
    assert isinstance(output, TokenOutput)
    assert (output.finish, output.hand_off is not None) == (FinishReason.STOP, is_kept)
    assert len(bench.scheduler.pool.leases) == is_kept


def test_no_reader_of_several_takes_the_blocks_over() -> None:
    """P and D are one engine: each choice computes what the cache lacks, since each writes into the last block."""
    bench = Bench(engine_id="us")
    held = hand_off(bench, 3)
    names = [reader_name(held.lease_id, reader) for reader in range(3)]
    lead = bench.add_own("d0", PROMPT, held)
    others = [
        bench.add_own(f"d{reader}", PROMPT, held, lease_id=names[reader], first_token=-1) for reader in range(1, 3)
    ]
    bench.run()
    assert bench.tokens(lead) == expected(PROMPT, 4)[1:]
    assert [bench.tokens(seq) for seq in others] == [expected(PROMPT, 4)] * 2
    told = bench.scheduler.local_handoff.drain()
    assert sorted(told) == sorted(names)
    assert [bench.scheduler.state.leases.note_read(name) for name in told] == [None, None, held.lease_id]
    assert held.lease_id in bench.scheduler.state.leases and bench.scheduler.state.end_lease(held.lease_id)
    counters = bench.scheduler.counters
    # All but the last block came from the cache, three times.
    assert (counters.local_handoffs, counters.local_prefills) == (0, 3)
    assert counters.prefix_hit_tokens == 3 * 8
    assert bench.scheduler.is_quiet

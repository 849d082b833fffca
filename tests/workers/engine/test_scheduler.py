"""The scheduler's decisions, one by one; their consequences are the simulation's."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.steps import CancelRead, Read, ReadResult, Sampled, Step, StepResult
from baton_serve.workers.engine.api import (
    EngineRequest,
    FinishReason,
    InvalidHandOffError,
    PromptTooLongError,
    QueueFullError,
    ReadFailedError,
)
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.sequences.sequence_state import State
from tests.kits.engine.fake_rank import PROMISE
from tests.kits.engine.requests import VOCAB, expected, params, params_of, remote_request, request
from tests.kits.engine.scheduler_bench import Bench, rows

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


# --- steps -------------------------------------------------------------------------------------------------------


def test_decode_rows_go_before_chunks_of_a_prompt() -> None:
    bench = Bench(max_num_batched_tokens=5)
    first = bench.add("a", [1])
    assert rows(bench.step()) == [(first, 0, 1, True)]
    second = bench.add("b", PROMPT)
    assert rows(bench.step()) == [(first, 1, 1, True), (second, 0, 4, False)]
    assert rows(bench.step()) == [(first, 2, 1, True), (second, 4, 4, False)]
    assert rows(bench.step()) == [(first, 3, 1, True), (second, 8, 2, True)]
    assert bench.tokens(first) == expected([1], 4)
    bench.run()
    assert bench.tokens(second) == expected(PROMPT, 4)
    assert bench.scheduler.counters.prefill_tokens == 11
    assert bench.scheduler.counters.decode_tokens == 6


def test_one_step_at_a_time() -> None:
    bench = Bench()
    bench.add("a", [1])
    assert len(bench.pump()) == 1
    bench.add("b", [2])
    assert bench.pump() == []
    bench.finish()
    assert len(rows(bench.step())) == 2


def test_lower_priority_then_older_runs_first() -> None:
    bench = Bench(max_num_seqs=1)
    names = [bench.add("a", [1], 1), bench.add("b", [2], 1, priority=-1), bench.add("c", [3], 1, priority=-1)]
    order = [rows(bench.step())[0][0] for _ in names]
    assert order == [names[1], names[2], names[0]]


def test_who_waits_for_room_is_not_overtaken() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", PROMPT, 2)
    big = bench.add("b", [9] * 9, 1)
    small = bench.add("c", [8], 1)
    assert len(rows(bench.step())) == 1
    assert not bench.outputs[small]
    bench.run()
    assert bench.tokens(small)
    assert bench.tokens(big)


def test_the_youngest_of_the_least_urgent_is_preempted() -> None:
    bench = Bench(num_blocks=3, prefix_cache=False)
    low = bench.add("low", [1, 2, 3, 4], 6, priority=1)
    high = bench.add("high", [5, 6, 7, 8], 6, priority=0)
    assert len(rows(bench.step())) == 2
    # Both need a second block, one is left.
    step = bench.step()
    assert rows(step) == [(high, 4, 1, True)]
    assert bench.scheduler.counters.preemptions == 1
    bench.run()
    assert bench.tokens(low) == expected([1, 2, 3, 4], 6)
    assert bench.tokens(high) == expected([5, 6, 7, 8], 6)


def test_who_preempts_itself_makes_room_at_once() -> None:
    """No step is left whose end would wake anybody, and the lease may last."""
    bench = Bench(num_blocks=4, prefix_cache=False)
    bench.hand_off("p", [7] * 8)
    low = bench.add("low", [1] * 8)
    bench.step()
    high = bench.add("high", [2] * 8, 1, priority=-1)
    assert rows(bench.step()) == [(high, 0, 8, True)]
    bench.scheduler.state.end_lease("lease-0")
    bench.run()
    assert bench.tokens(low) == expected([1] * 8, 4)


def test_a_preempted_sequence_starts_over_with_its_outputs() -> None:
    bench = Bench(num_blocks=3, prefix_cache=False)
    old = bench.add("old", [1, 2, 3, 4], 2)
    young = bench.add("young", [5, 6, 7, 8], 3)
    bench.step()
    assert rows(bench.step()) == [(old, 4, 1, True)]
    step = bench.step()
    assert step is not None
    (again,) = step.started
    assert (again.seq, again.output_token_ids, len(again.block_ids)) == (young, expected([5, 6, 7, 8], 1), 2)
    assert rows(step) == [(young, 0, 5, True)]
    assert step.dropped == [old]


def test_a_preempted_sequence_finds_its_prefix_again() -> None:
    bench = Bench(num_blocks=3)
    bench.add("old", [1, 2, 3, 4], 2)
    young = bench.add("young", [5, 6, 7, 8], 3)
    bench.step()
    bench.step()
    # ``old`` took the last free block, and the preempted one's is cached.
    assert rows(bench.step()) == [(young, 4, 1, True)]
    assert bench.outputs[young][0].num_cached_tokens == 0


def test_a_cached_prefix_is_not_computed_again_but_its_last_block_is() -> None:
    bench = Bench()
    prompt = PROMPT[:8]
    first = bench.add("a", prompt, 1)
    bench.run()
    second = bench.add("b", prompt, 1)
    assert rows(bench.step()) == [(second, 4, 4, True)]
    third = bench.add("c", [*prompt, 1], 1)
    assert rows(bench.step()) == [(third, 8, 1, True)]
    assert [bench.outputs[seq][0].num_cached_tokens for seq in (first, second, third)] == [0, 4, 8]
    assert bench.scheduler.counters.prefix_hit_tokens == 12


@pytest.mark.parametrize("first_salt", ["", "a"])
def test_another_salt_finds_nothing_and_what_it_reads_is_its_own(first_salt: str) -> None:
    bench = Bench()
    prompt = PROMPT[:8]
    first = bench.add("a", prompt, 1, cache_salt=first_salt)
    bench.run()
    bench.add_remote("b", prompt, cache_salt="b")
    (read,) = bench.pump()
    assert read.remote_block_ids, "all blocks are read: those here are of another salt"
    bench.read(prompt)
    bench.run()
    same = bench.add("c", prompt, 1, cache_salt="b")
    assert rows(bench.step()) == [(same, 4, 4, True)]
    other = bench.add("d", prompt, 1, cache_salt="d")
    assert rows(bench.step()) == [(other, 0, 8, True)]
    assert [bench.outputs[seq][0].num_cached_tokens for seq in (first, same, other)] == [0, 4, 0]


def test_without_prefix_cache_nothing_is_reused() -> None:
    bench = Bench(prefix_cache=False)
    bench.add("a", PROMPT, 1)
    bench.run()
    bench.add("b", PROMPT, 1)
    assert rows(bench.step())[0][1] == 0
    assert bench.scheduler.pool.stats().cached == 0


@pytest.mark.parametrize(
    ("fields", "finish", "count"),
    [
        ({"max_tokens": 3}, FinishReason.LENGTH, 3),
        ({"max_tokens": 100}, FinishReason.LENGTH, 54),
        ({"max_tokens": 100, "stop_token_ids": frozenset(expected(PROMPT, 1))}, FinishReason.STOP, 1),
    ],
)
def test_why_a_sequence_ends(fields: dict[str, Any], finish: FinishReason, count: int) -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT, **fields)
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, count)
    assert [item.finish for item in bench.outputs[seq]] == [None] * (count - 1) + [finish]


def test_the_whole_cache_bounds_a_sequence() -> None:
    bench = Bench(num_blocks=3)
    seq = bench.add("a", PROMPT, 100)
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 2)
    assert bench.outputs[seq][-1].finish is FinishReason.LENGTH


def test_the_rank_is_told_to_forget_even_when_nothing_else_is_to_do() -> None:
    bench = Bench()
    seq = bench.add("a", [1], 1)
    bench.step()
    assert bench.step() == Step(2, [], [seq], [], [])
    assert bench.step() is None
    assert bench.scheduler.counters.steps == 1


# --- hand-off ----------------------------------------------------------------------------------------------------


def test_a_hand_off_pins_the_prompts_blocks_and_nothing_more() -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT[:8], 1, hand_off=True)
    bench.step()
    (output,) = bench.outputs[seq]
    assert output.finish is FinishReason.LENGTH
    assert output.hand_off.lease_id == "lease-0"
    assert len(output.hand_off.block_ids) == 2
    assert output.hand_off.promise == max(bench.rank.versions)
    stats = bench.scheduler.pool.stats()
    assert (stats.leased, stats.pinned, stats.leases) == (2, 0, 1)
    assert bench.scheduler.state.end_lease("lease-0")
    assert not bench.scheduler.state.end_lease("lease-0")
    assert bench.scheduler.pool.stats().cached == 2


def test_a_first_token_that_ends_the_sequence_pins_nothing() -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT, 1, hand_off=True, stop_token_ids=frozenset(expected(PROMPT, 1)))
    bench.step()
    (output,) = bench.outputs[seq]
    assert (output.finish, output.hand_off) == (FinishReason.STOP, None)
    assert not len(bench.scheduler.pool.leases)


def test_leased_blocks_serve_other_prompts_and_are_never_given_out() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", PROMPT, 1, hand_off=True)
    bench.step()
    other = bench.add("b", PROMPT, 1)
    assert rows(bench.step()) == [(other, 8, 2, True)]
    waiting = bench.add("c", [3] * 6, 1)
    bench.run()
    assert not bench.outputs[waiting]
    assert bench.scheduler.is_starved
    bench.scheduler.state.end_lease("lease-0")
    assert not bench.scheduler.is_starved
    bench.run()
    assert bench.tokens(waiting) == expected([3] * 6, 1)


def test_nobody_is_starved_while_something_runs() -> None:
    bench = Bench(num_blocks=4)
    bench.add("a", PROMPT, 1, hand_off=True)
    bench.step()
    bench.add("b", [1], 2)
    bench.step()
    bench.add("c", [3] * 6, 1)
    bench.pump()
    assert not bench.scheduler.is_starved


# --- reads -------------------------------------------------------------------------------------------------------


def test_a_read_fills_the_blocks_and_decoding_goes_on_after_the_first_token() -> None:
    bench = Bench()
    seq = bench.add_remote("a", PROMPT, 4)
    (read,) = bench.pump()
    assert isinstance(read, Read)
    assert (read.remote_block_ids, read.promise) == ([1000, 1001, 1002], PROMISE)
    assert (read.engine_id, read.lease_id) == ("p", "theirs")
    assert [block for block, _ in read.fresh] == read.local_block_ids
    bench.read(PROMPT)
    step = bench.step()
    assert rows(step) == [(seq, 10, 1, True)]
    assert step.started[0].output_token_ids == expected(PROMPT, 1)
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 4)[1:]
    assert bench.scheduler.counters.reads["done"] == 1
    assert (bench.scheduler.counters.read_bytes, bench.scheduler.counters.read_descriptors) == (300, 3)
    assert bench.scheduler.counters.prefill_tokens == 0


def test_a_read_is_posted_while_a_step_is_under_way() -> None:
    bench = Bench()
    bench.add("a", [1])
    bench.pump()
    bench.add_remote("b", PROMPT)
    assert [type(command) for command in bench.pump()] == [Read]


def test_an_audit_counts_the_blocks_as_they_were_when_it_was_asked_for() -> None:
    """Another thread counts them, while steps, leases and hand-offs go on."""
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("p", PROMPT)
    bench.hand_off("q", PROMPT)
    running = bench.add("a", [1, 2, 3], 6)
    bench.step()
    audit = bench.scheduler.state.audit()
    remote = params_of(hand_off, PROMPT, "us")
    taken = bench.add("d", PROMPT, 9, remote=remote)
    bench.scheduler.state.end_lease("lease-1")
    bench.run()
    assert bench.tokens(running) and bench.tokens(taken)
    audit()
    bench.scheduler.state.check()


def test_a_read_begins_though_a_prompt_before_it_waits_for_the_next_step() -> None:
    bench = Bench()
    bench.add("a", [1])
    bench.pump()
    prompt = bench.add("b", [9] * 9, 1)
    bench.add_remote("c", PROMPT)
    assert [type(command) for command in bench.pump()] == [Read]
    bench.finish()
    assert prompt in [row[0] for row in rows(bench.step())]


@pytest.mark.parametrize("limit", [{"num_blocks": 6}, {"max_num_seqs": 2}])
def test_a_read_leaves_room_for_a_prompt_that_waits_for_the_next_step(limit: dict[str, int]) -> None:
    bench = Bench(**limit)
    bench.add("a", [1])
    bench.pump()
    prompt = bench.add("b", [9] * 9, 1)
    bench.add_remote("c", PROMPT)
    assert bench.pump() == []
    bench.finish()
    assert prompt in [row[0] for row in rows(bench.step())]


def test_what_is_cached_is_not_read() -> None:
    bench = Bench()
    bench.add("a", PROMPT[:8], 1)
    bench.run()
    bench.add_remote("b", PROMPT)
    (read,) = bench.pump()
    assert read.remote_block_ids == [1002]
    bench.read(PROMPT)
    bench.run()
    bench.add_remote("c", PROMPT[:8])
    (read,) = bench.pump()
    assert (read.remote_block_ids, read.local_block_ids) == ([], [])
    bench.read(PROMPT[:8])
    bench.run()
    assert bench.tokens(3) == expected(PROMPT[:8], 4)[1:]


def test_blocks_that_were_read_serve_other_prompts() -> None:
    bench = Bench()
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.read(PROMPT)
    seq = bench.add("b", PROMPT)
    assert (seq, 8, 2, True) in rows(bench.step())


def test_without_a_first_token_the_last_prompt_token_is_computed_here() -> None:
    bench = Bench()
    prompt = PROMPT[:8]
    seq = bench.add_remote("a", prompt, 3, remote=params(prompt, first_token=-1))
    bench.pump()
    bench.read(prompt)
    assert rows(bench.step()) == [(seq, 7, 1, True)]
    bench.run()
    assert bench.tokens(seq) == expected(prompt, 3)


@pytest.mark.parametrize(
    ("stale", "kept"), [([0], 0), ([1], 1), ([2], 2), ([1, 2], 1), ([0, 2], 0), ([], 0), (None, 0)]
)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_stale_read_keeps_what_comes_before_the_first_stale_block(
    stale: list[int] | None, kept: int, prefix_cache: bool
) -> None:
    bench = Bench(prefix_cache=prefix_cache)
    seq = bench.add_remote("a", PROMPT, 4)
    bench.pump()
    bench.read(PROMPT, "stale", stale)
    assert rows(bench.step()) == [(seq, 4 * kept, 11 - 4 * kept, True)]
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 4)[1:]
    counters = bench.scheduler.counters
    assert (counters.fence_rejections, counters.reads["stale"]) == (1, 1)
    assert (counters.local_prefills, counters.stale_kept_tokens) == (1, 4 * kept)


def test_stale_blocks_are_counted_from_the_start_of_the_prompt_not_of_the_read() -> None:
    bench = Bench()
    bench.add("first", PROMPT[:5], 1)
    bench.run()
    seq = bench.add_remote("a", PROMPT, 4, remote=params(PROMPT, first_token=-1))
    (read,) = bench.pump()
    assert isinstance(read, Read) and len(read.local_block_ids) == 2
    bench.read(PROMPT, "stale", [1])
    assert rows(bench.step()) == [(seq, 8, 2, True)]
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 4)
    assert bench.scheduler.counters.stale_kept_tokens == 4


@pytest.mark.parametrize("wrong", ["another block", "the block of the first token"])
def test_whoever_names_blocks_that_were_not_read_is_not_trusted_with_any(wrong: str) -> None:
    bench = Bench()
    prompt = PROMPT[:8]
    seq = bench.add_remote("a", prompt, 4)
    (read,) = bench.pump()
    assert isinstance(read, Read)
    others = {block for block, _ in read.fresh} - set(read.local_block_ids)
    block = others.pop() if wrong == "the block of the first token" else 15
    bench.rank.finish_read(1, "stale", prompt, [])
    bench.deliver(bench.scheduler.apply_read(ReadResult(1, "stale", 0, 0.0, "", 0, [block])))
    assert rows(bench.step()) == [(seq, 0, 9, True)]
    bench.run()
    assert bench.tokens(seq) == expected(prompt, 4)[1:]


def test_what_a_stale_read_kept_serves_other_prompts() -> None:
    bench = Bench()
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.read(PROMPT, "stale", [1, 2])
    seq = bench.add("b", PROMPT[:6], 1)
    assert (seq, 4, 2, True) in rows(bench.step())


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_failed_read_is_the_callers_to_try_elsewhere(outcome: str) -> None:
    bench = Bench()
    seq = bench.add_remote("a", PROMPT)
    bench.pump()
    bench.read(PROMPT, outcome)
    (error,) = bench.outputs[seq]
    assert isinstance(error, ReadFailedError)
    assert outcome in str(error)
    assert bench.scheduler.is_quiet
    assert bench.scheduler.counters.local_prefills == 0


@pytest.mark.parametrize("outcome", ["done", "stale", "failed", "cancelled"])
def test_an_aborted_read_keeps_its_blocks_until_it_has_ended(outcome: str) -> None:
    bench = Bench(num_blocks=4)
    bench.add_remote("a", PROMPT)
    bench.pump()
    assert bench.scheduler.abort("a") == 1
    assert bench.pump() == [CancelRead(1)]
    assert bench.scheduler.pool.stats().pinned == 3
    other = bench.add("b", [1] * 5, 1)
    assert bench.step() is None
    bench.read(PROMPT, outcome)
    bench.run()
    assert bench.tokens(other) == expected([1] * 5, 1)
    assert bench.outputs[1] == []


def test_a_cancelled_read_keeps_its_blocks_but_not_its_seat() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.scheduler.abort("a")
    bench.pump()
    load = bench.scheduler.load()
    assert (load.running, load.reading, load.waiting, load.pinned_blocks) == (0, 0, 0, 3)
    other = bench.add("b", [1] * 5)
    assert rows(bench.step()) == [(other, 0, 5, True)]
    assert bench.scheduler.load().pinned_blocks == 5
    bench.run()
    assert bench.tokens(other) == expected([1] * 5, 4)
    bench.read(PROMPT)
    assert bench.scheduler.load().pinned_blocks == 0


@pytest.mark.parametrize("outcome", ["done", "stale", "failed", "cancelled"])
@pytest.mark.parametrize("why", ["timeout", "failing"])
def test_a_read_is_given_up_at_once_and_its_blocks_only_when_it_has_ended(why: str, outcome: str) -> None:
    bench = Bench(max_num_seqs=1, read_timeout_s=10.0)
    seq = bench.add_remote("a", PROMPT)
    bench.pump()
    if why == "timeout":
        bench.deliver(bench.scheduler.time_out_read(1))
    else:
        bench.deliver(bench.scheduler.reads.give_up(1, "rank 1: P is gone"))
    (error,) = bench.outputs[seq]
    assert isinstance(error, ReadFailedError)
    texts = {
        "timeout": "the read of P's blocks has not ended after 10 s (read_timeout)",
        "failing": "rank 1: P is gone",
    }
    assert str(error) == texts[why]
    load = bench.scheduler.load()
    assert (load.reading, load.pinned_blocks) == (0, 3)
    assert bench.scheduler.is_quiet == (why == "timeout"), "a read that only fails is about to end"
    assert bench.scheduler.abort("a") is None
    again = bench.add("a", [1], 1)
    assert rows(bench.step()) == [(again, 0, 1, True)]
    bench.read(PROMPT, outcome)
    assert bench.scheduler.load().pinned_blocks == 0
    assert len(bench.outputs[seq]) == 1
    counters = bench.scheduler.counters
    assert (counters.ended["failed"], counters.ended["aborted"], counters.local_prefills) == (1, 0, 0)
    assert (counters.reads[outcome], counters.reads_timed_out) == (1, int(why == "timeout"))


def test_who_has_left_is_not_told_that_the_read_is_given_up() -> None:
    bench = Bench()
    seq = bench.add_remote("a", PROMPT)
    bench.pump()
    bench.scheduler.abort("a")
    bench.pump()
    assert bench.scheduler.reads.give_up(1, "no") is None
    assert bench.scheduler.time_out_read(1) is None
    bench.read(PROMPT, "cancelled")
    assert bench.scheduler.reads.give_up(1, "late") is None
    assert bench.outputs[seq] == []
    counters = bench.scheduler.counters
    assert (counters.ended["aborted"], counters.ended["failed"], counters.reads_timed_out) == (1, 0, 1)


def test_when_a_read_takes_too_long_the_ranks_have_to_show_that_they_answer() -> None:
    bench = Bench()
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.scheduler.time_out_read(1)
    assert bench.step() == Step(1, [], [], [], [])
    assert bench.step() is None
    assert bench.scheduler.counters.steps == 0


def test_a_step_that_is_under_way_shows_that_already() -> None:
    bench = Bench()
    bench.add_remote("a", PROMPT)
    bench.add("b", [1], 1)
    bench.pump()
    bench.scheduler.time_out_read(1)
    assert bench.pump() == []
    bench.finish()
    assert [step.dropped for step in bench.pump() if isinstance(step, Step)] == [[2]]
    bench.finish()
    assert bench.pump() == []


def test_who_waits_for_the_blocks_of_a_cancelled_read_is_not_starved_by_leases() -> None:
    bench = Bench(num_blocks=6)
    bench.add("p", [7] * 5, 1, hand_off=True)
    bench.step()
    bench.add_remote("a", PROMPT)
    bench.step()
    bench.scheduler.abort("a")
    bench.pump()
    waiting = bench.add("b", [1] * 9, 1)
    assert bench.step() is None
    assert not bench.scheduler.is_starved
    bench.read(PROMPT)
    bench.run()
    assert bench.tokens(waiting) == expected([1] * 9, 1)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_read_that_may_never_end_is_no_movement(is_wanted: bool) -> None:
    bench = Bench(num_blocks=6)
    bench.add("p", [7] * 5, 1, hand_off=True)
    bench.step()
    bench.add_remote("a", PROMPT)
    bench.step()
    if not is_wanted:
        bench.scheduler.abort("a")
    waiting = bench.add("b", [1] * 9, 1)
    bench.step()
    assert not bench.scheduler.is_starved
    assert (bench.scheduler.time_out_read(1) is not None) == is_wanted
    assert bench.scheduler.is_starved
    bench.scheduler.state.end_lease("lease-0")
    assert not bench.scheduler.is_starved and not bench.scheduler.is_quiet
    bench.run()
    assert bench.tokens(waiting) == expected([1] * 9, 1)
    assert bench.scheduler.is_quiet
    assert bench.scheduler.pool.stats().pinned == 3, "its blocks stay"
    bench.read(PROMPT, "cancelled")
    assert bench.scheduler.pool.stats().pinned == 0 and bench.scheduler.is_quiet


def test_who_cannot_read_when_its_turn_comes_makes_way_with_nothing_taken() -> None:
    bench = Bench(max_num_seqs=2)
    first, second = bench.add_remote("a", PROMPT), bench.add_remote("b", [1] * 9)
    third = bench.add("c", [2], 2)
    bench.add_remote("d", [3] * 7, remote=params([3] * 7, remote_engine_id="q"))
    bench.lost = {"p"}
    step, read = sorted(bench.pump(), key=lambda command: isinstance(command, Read))
    assert isinstance(step, Step) and rows(step) == [(third, 0, 1, True)]
    assert isinstance(read, Read) and read.engine_id == "q"
    assert [seq for seq, _ in bench.scheduler.drain_disconnected()] == [first, second]
    assert bench.scheduler.drain_disconnected() == []
    load = bench.scheduler.load()
    assert (load.waiting, load.reading, load.running, load.pinned_blocks) == (2, 1, 1, 3)
    assert bench.pump() == []
    # Whoever is met again first reads in the old order all the same.
    bench.lost = set()
    bench.scheduler.connected(second)
    bench.scheduler.connected(first)
    bench.finish()
    bench.run()
    assert bench.tokens(third) == expected([2], 2)
    assert sorted(bench.rank.reads) == [read.read_id, read.read_id + 1]
    assert bench.rank.reads[read.read_id + 1].local_block_ids == bench.scheduler.state.sequences.by_id[first].blocks[:3]


def test_who_was_disconnected_can_fail_or_be_aborted() -> None:
    bench = Bench()
    bench.lost = {"p"}
    first, second = bench.add_remote("a", PROMPT), bench.add_remote("b", PROMPT)
    assert bench.pump() == []
    assert [seq for seq, _ in bench.scheduler.drain_disconnected()] == [first, second]
    bench.deliver(bench.scheduler.connect_failed(first, "stuck"))
    (error,) = bench.outputs[first]
    assert isinstance(error, ReadFailedError) and str(error) == "stuck"
    assert bench.scheduler.abort("b") == second
    assert bench.scheduler.is_quiet


def test_who_has_no_seat_is_not_asked_for_its_connection() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", [1], 9)
    bench.step()
    bench.lost = {"p"}
    bench.add_remote("b", PROMPT)
    bench.step()
    assert bench.scheduler.drain_disconnected() == []


def test_who_needs_more_room_than_there_is_makes_way_if_it_cannot_read() -> None:
    """The room may be held by the very read that hangs."""
    bench = Bench(num_blocks=4)
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.add_remote("b", PROMPT)
    other = bench.add("c", [1], 1)
    assert bench.step() is None
    bench.lost = {"p"}
    bench.scheduler.time_out_read(1)
    assert rows(bench.step()) == [(other, 0, 1, True)]


def test_a_read_that_ended_before_its_cancel_was_sent_is_not_cancelled() -> None:
    bench = Bench()
    bench.add_remote("a", PROMPT)
    bench.pump()
    bench.scheduler.abort("a")
    bench.read(PROMPT)
    assert bench.pump() == []
    assert bench.scheduler.is_quiet


def test_a_failed_handshake_ends_the_request() -> None:
    bench = Bench()
    seq = bench.scheduler.add(remote_request("a", PROMPT))
    assert bench.pump() == []
    assert bench.scheduler.load().waiting == 1
    failure = bench.scheduler.connect_failed(seq, "refused: other weights")
    assert failure is not None
    assert isinstance(failure[1], ReadFailedError)
    assert bench.scheduler.is_quiet
    assert bench.scheduler.connect_failed(seq, "again") is None


# --- reads from ourselves ----------------------------------------------------------------------------------------


def test_what_this_engine_handed_off_is_taken_over_not_read() -> None:
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("p", PROMPT)
    promised = list(hand_off.block_ids)
    seq = bench.add_own("d", PROMPT, hand_off)
    assert bench.scheduler.load().waiting == 1
    step = bench.step()
    assert rows(step) == [(seq, 10, 1, True)]
    assert step is not None and step.started[0].block_ids == hand_off.block_ids
    assert bench.scheduler.local_handoff.drain() == [hand_off.lease_id]
    assert bench.scheduler.local_handoff.drain() == []
    assert not bench.scheduler.state.end_lease(hand_off.lease_id)
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 4)[1:]
    assert hand_off.block_ids == promised, "the blocks that the sequence got later are not in the promise"
    assert bench.outputs[seq][0].num_cached_tokens == 0
    assert bench.scheduler.is_quiet
    counters = bench.scheduler.counters
    assert (counters.local_handoffs, counters.leases_ended, counters.prefill_tokens) == (1, 1, len(PROMPT))


def test_leases_that_fill_the_cache_do_not_lock_out_their_own_readers() -> None:
    """Every block is leased, every reader needs one more, and prefills that came earlier wait for room."""
    bench = Bench(num_blocks=8, engine_id="us", prefix_cache=False)
    prompts = [[number] * 8 for number in range(1, 5)]
    hand_offs = [bench.hand_off(f"p{prompt}", prompt) for prompt in prompts]
    assert bench.scheduler.pool.stats().leased == 8
    waiting = bench.add("waiting", [9] * 8, 1, hand_off=True, priority=-1)
    seqs = [bench.add_own(f"d{prompt}", prompt, held) for prompt, held in zip(prompts, hand_offs, strict=True)]
    bench.run()
    for seq, prompt in zip(seqs, prompts, strict=True):
        assert bench.tokens(seq) == expected(prompt, 4)[1:]
    assert len(bench.outputs[waiting]) == 1


def test_a_seat_given_up_goes_to_the_next_reader_at_once() -> None:
    """The only sequence that runs preempts itself, and no step is left whose end would wake anybody."""
    bench = Bench(num_blocks=4, max_num_seqs=1, max_num_batched_tokens=8, engine_id="us", prefix_cache=False)
    prompts = [[number] * 8 for number in (1, 2)]
    hand_offs = [bench.hand_off(f"p{prompt}", prompt) for prompt in prompts]
    seqs = [bench.add_own(f"d{prompt}", prompt, held) for prompt, held in zip(prompts, hand_offs, strict=True)]
    bench.run()
    assert [bench.tokens(seq) for seq in seqs] == [expected(prompt, 4)[1:] for prompt in prompts]


def test_a_parked_sequence_waits_for_a_seat_and_can_be_aborted() -> None:
    bench = Bench(max_num_seqs=1, engine_id="us")
    hand_off = bench.hand_off("p", PROMPT)
    bench.add("a", [1], 9)
    bench.step()
    bench.add_own("d", PROMPT, hand_off)
    bench.step()
    assert bench.scheduler.load().waiting == 1
    assert bench.scheduler.abort("d") is not None
    assert bench.scheduler.local_handoff.drain() == []
    assert hand_off.lease_id in bench.scheduler.state.leases, "another D may still read it"


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_without_its_lease_a_hand_off_to_ourselves_is_computed(prefix_cache: bool) -> None:
    bench = Bench(engine_id="us", prefix_cache=prefix_cache)
    hand_off = bench.hand_off("p", PROMPT)
    bench.scheduler.state.end_lease(hand_off.lease_id)
    seq = bench.add_own("d", PROMPT, hand_off)
    start = 8 if prefix_cache else 0
    assert rows(bench.step()) == [(seq, start, 11 - start, True)]
    bench.run()
    assert bench.tokens(seq) == expected(PROMPT, 4)[1:]
    assert bench.scheduler.local_handoff.drain() == []
    assert bench.scheduler.counters.local_prefills == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [[13, 14, 15]]},
        {"first_token": -1},
    ],
)
def test_a_hand_off_to_ourselves_that_is_not_what_the_lease_holds_is_computed(changes: dict[str, Any]) -> None:
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("p", PROMPT)
    seq = bench.add_own("d", PROMPT, hand_off, **changes)
    bench.run()
    count = 4 if "first_token" in changes else 3
    assert bench.tokens(seq) == expected(PROMPT, 4)[-count:]
    assert bench.scheduler.local_handoff.drain() == [hand_off.lease_id]
    assert bench.scheduler.is_quiet


def test_a_lease_of_another_prompt_is_not_taken_over() -> None:
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("p", PROMPT)
    other = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    seq = bench.add_own("d", other, hand_off)
    bench.run()
    assert bench.tokens(seq) == expected(other, 4)[1:]
    assert bench.scheduler.counters.local_handoffs == 0


# --- aborts ------------------------------------------------------------------------------------------------------


def test_abort_of_a_running_sequence_outside_of_the_step_frees_at_once() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add("a", PROMPT)
    waits = bench.add("b", [9] * 5)
    bench.step()
    bench.pump()
    assert bench.scheduler.abort("b") == waits
    assert bench.scheduler.pool.stats().pinned == 3


# --- asked again under the same id -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "computing", "running", "preempted"])
def test_who_is_asked_for_again_is_aborted_wherever_it_is(state: str) -> None:
    blocks = {"num_blocks": 5} if state == "preempted" else {}
    bench = Bench(**blocks)
    urgent = bench.add("b", PROMPT, 9, priority=-1) if state == "preempted" else 0
    first = bench.add("a", PROMPT[:4], 9)
    if state in ("running", "preempted"):
        bench.step()
    if state == "preempted":
        while bench.scheduler.state.sequences.by_id[first].state is not State.PREEMPTED:
            assert bench.step()
    if state == "computing":
        bench.pump()
    second = bench.add("a", [1], 3)
    assert bench.scheduler.current("a") == second != first
    had = list(bench.outputs[first])
    bench.scheduler.state.check()
    if state == "computing":
        bench.pump()
        bench.finish()
    bench.run()
    assert bench.outputs[first] == had, "nothing comes of it any more"
    assert bench.tokens(second) == expected([1], 3)
    assert not urgent or bench.tokens(urgent) == expected(PROMPT, 9)
    assert bench.scheduler.counters.ended["aborted"] == 1
    assert bench.scheduler.load().pinned_blocks == 0


def test_a_read_of_the_older_that_does_not_end_holds_up_nothing_and_keeps_its_blocks() -> None:
    """One slot, and the same blocks of the same P: the newer one reads them into blocks of its own."""
    bench = Bench(max_num_seqs=1)
    first = bench.add_remote("a", PROMPT)
    (older,) = (command for command in bench.pump() if isinstance(command, Read))
    second = bench.add_remote("a", PROMPT)
    commands = bench.pump()
    assert CancelRead(older.read_id) in commands
    (newer,) = (command for command in commands if isinstance(command, Read))
    assert newer.lease_id == older.lease_id
    assert not set(newer.local_block_ids) & set(older.local_block_ids)
    failure = bench.scheduler.apply_read(bench.rank.finish_read(newer.read_id, "done", PROMPT, None))
    assert failure is None
    bench.run()
    assert bench.tokens(second) == expected(PROMPT, 4)[1:]
    assert bench.scheduler.load().pinned_blocks == len(older.local_block_ids), "it may still be written"
    bench.read(PROMPT, "cancelled")
    assert bench.scheduler.load().pinned_blocks == 0
    assert bench.outputs[first] == []


@pytest.mark.parametrize("is_met", [False, True])
def test_one_that_waits_for_its_p_is_replaced(is_met: bool) -> None:
    bench = Bench()
    first = bench.scheduler.add(remote_request("a", PROMPT))
    if is_met:
        bench.scheduler.connected(first)
    second = bench.add_remote("a", PROMPT)
    bench.scheduler.connected(first)
    (read,) = (command for command in bench.pump() if isinstance(command, Read))
    bench.read(PROMPT)
    bench.run()
    assert bench.tokens(second) == expected(PROMPT, 4)[1:]
    assert (read.read_id, bench.scheduler.counters.ended["aborted"]) == (1, 1)


def test_an_abort_by_id_reaches_the_newer_one_and_nobody_is_left() -> None:
    bench = Bench()
    bench.add("a", PROMPT)
    bench.pump()
    second = bench.add("a", PROMPT)
    assert bench.scheduler.requests_with("a") == ["a"]
    assert bench.scheduler.abort("a") == second
    assert bench.scheduler.abort("a") is None
    bench.finish()
    assert rows(bench.step()) == []
    assert bench.scheduler.is_quiet and bench.scheduler.counters.ended["aborted"] == 2


def test_who_is_asked_for_again_leaves_its_place_in_a_full_queue() -> None:
    bench = Bench(max_num_seqs=1, max_waiting=1)
    bench.add("a", PROMPT)
    bench.pump()
    bench.add("b", PROMPT)
    again = bench.add("b", [1], 1)
    with pytest.raises(QueueFullError):
        bench.scheduler.add(request("a", PROMPT))
    bench.finish()
    bench.run()
    assert bench.tokens(1) == expected(PROMPT, 4), "one that is refused replaces nobody"
    assert bench.tokens(again) == expected([1], 1)


def test_a_lease_outlives_that_its_request_is_asked_again() -> None:
    """Who keeps the leases ends it; the request that reads them here is the same one."""
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("a", PROMPT)
    assert bench.scheduler.state.leases.of("a") == [hand_off.lease_id]
    first = bench.add_own("a", PROMPT, hand_off)
    again = bench.add_own("a", PROMPT, hand_off)
    bench.run()
    assert (bench.outputs[first], bench.tokens(again)) == ([], expected(PROMPT, 4)[1:])
    assert bench.scheduler.counters.local_handoffs == 1 and bench.scheduler.local_handoff.drain() == [hand_off.lease_id]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [request("a", [1] * 64), remote_request("a", [1] * 63)])
def test_requests_that_cannot_run_are_refused(bad: EngineRequest) -> None:
    bench = Bench()
    with pytest.raises(PromptTooLongError):
        bench.scheduler.add(bad)
    assert bench.scheduler.is_quiet


def test_the_queue_is_bounded() -> None:
    bench = Bench(num_blocks=2, max_waiting=2, engine_id="us")
    bench.add("runs", [1] * 5)
    bench.step()
    bench.add("a", [2] * 5)
    bench.scheduler.add(remote_request("b", PROMPT[:6]))
    with pytest.raises(QueueFullError):
        bench.scheduler.add(request("c", [3]))
    assert bench.scheduler.load().waiting == 2
    bench.scheduler.abort("a")
    bench.add("c", [3], 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_num_tokens": 9},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [[1, 2]]},
        {"remote_block_ids": [[1, 2, 3, 4]]},
        {"first_token": VOCAB},
        {"first_token": 3},
    ],
)
def test_hand_offs_that_contradict_the_request_are_refused(changes: dict[str, Any]) -> None:
    bench = Bench()
    bad = remote_request("a", PROMPT, remote=params(PROMPT, **changes), stop_token_ids=frozenset({3}))
    with pytest.raises(InvalidHandOffError):
        bench.scheduler.add(bad)
    assert bench.scheduler.is_quiet


# --- what ranks must not do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        StepResult(2, [Sampled(1, 1)], 0.0),
        StepResult(1, [], 0.0),
        StepResult(1, [Sampled(2, 1)], 0.0),
        StepResult(1, [Sampled(1, 1), Sampled(1, 1)], 0.0),
        StepResult(1, [Sampled(1, VOCAB)], 0.0),
    ],
)
def test_a_rank_that_answers_something_else_changes_nothing(result: StepResult) -> None:
    bench = Bench()
    bench.add("a", [1])
    bench.pump()
    with pytest.raises(RankProtocolError):
        bench.scheduler.apply_step(result)
    bench.finish()
    bench.run()
    assert bench.tokens(1) == expected([1], 4)


# --- looking -----------------------------------------------------------------------------------------------------


def test_load_counts_everybody_once() -> None:
    bench = Bench(max_num_seqs=3)
    bench.add("a", [1])
    bench.add("h", [2] * 5, 1, hand_off=True)
    bench.step()
    bench.add_remote("b", PROMPT)
    bench.add("c", [4])
    bench.pump()
    bench.add("d", [5])
    load = bench.scheduler.load(draining=True)
    assert (load.running, load.reading, load.waiting, load.leases, load.draining) == (2, 1, 1, 1, True)
    assert (load.leased_blocks, load.pinned_blocks) == (2, 5)
    assert load.free_blocks + load.cached_blocks + load.pinned_blocks + load.leased_blocks == 16

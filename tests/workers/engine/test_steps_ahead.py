"""Steps that are sent before the result of the one under way."""

from __future__ import annotations

import msgspec
import pytest

from baton_serve.core.protocol.steps import Sampled, StepResult
from baton_serve.workers.engine.api import FinishReason, GrammarFailedError, TokenOutput
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.sequences.sequence_state import State
from tests.kits.engine.requests import expected
from tests.kits.engine.scheduler_bench import Bench, rows

PROMPT = [1, 2, 3, 4, 5, 6]


def run(bench: Bench) -> None:
    """To the end, with all steps ahead that can be."""
    while bench.go_ahead() or bench.rank.step is not None:
        bench.finish()


def stop_after(prompt: list[int], num_outputs: int) -> frozenset[int]:
    """Stop tokens with which the sequence ends after so many outputs."""
    outputs = expected(prompt, num_outputs)
    assert outputs[-1] not in outputs[:-1]
    return frozenset(outputs[-1:])


def test_a_step_that_decodes_is_followed_at_once() -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT, 4)
    (prefill,) = bench.go_ahead()
    assert rows(prefill) == [(seq, 0, 6, True)], "nothing goes ahead of a prompt"
    bench.finish()
    first, second = bench.go_ahead()
    assert rows(first) == [(seq, 6, 1, True)]
    assert rows(second) == [(seq, 7, 1, True)]
    assert bench.go_ahead() == [], "at most two are under way"
    bench.finish()
    (third,) = bench.go_ahead()
    assert rows(third) == [(seq, 8, 1, True)]
    bench.finish()
    assert bench.go_ahead() == []
    assert bench.tokens(seq) == expected(PROMPT, 3)


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(4, 64), (100, len(PROMPT) + 4)])
def test_a_length_that_is_known_leaves_no_surplus(max_tokens: int, max_model_len: int) -> None:
    bench = Bench(max_model_len=max_model_len)
    seq = bench.add("a", PROMPT, max_tokens)
    run(bench)
    assert bench.tokens(seq) == expected(PROMPT, 4)
    assert bench.scheduler.counters.decode_tokens == 3
    assert bench.scheduler.pool.stats().pinned == 0


def test_who_ends_by_length_is_not_in_the_step_ahead_and_others_are() -> None:
    bench = Bench()
    short, long = bench.add("a", [1], 2), bench.add("b", [2], 5)
    first, second = bench.go_ahead()
    assert rows(first) == [(short, 0, 1, True), (long, 0, 1, True)]
    assert rows(second) == [(short, 1, 1, True), (long, 1, 1, True)]
    bench.finish()
    assert rows(*bench.go_ahead()) == [(long, 2, 1, True)]
    run(bench)
    assert bench.tokens(short) == expected([1], 2)
    assert bench.tokens(long) == expected([2], 5)


def test_a_surplus_token_is_dropped_and_the_blocks_are_freed_after_it() -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT, 20, stop_token_ids=stop_after(PROMPT, 2))
    bench.step()
    assert len(bench.go_ahead()) == 2
    bench.finish()
    (*_, last) = bench.outputs[seq]
    assert isinstance(last, TokenOutput) and last.finish is FinishReason.STOP
    load = bench.scheduler.load()
    assert (load.running, load.waiting, load.pinned_blocks) == (0, 0, 2), "its slot is free, its blocks are not"
    assert bench.scheduler.current("a") is None and bench.scheduler.abort("a") is None
    assert not bench.scheduler.is_quiet
    assert bench.go_ahead() == [], "the ranks cannot forget it yet"
    bench.finish()
    assert bench.scheduler.load().pinned_blocks == 0
    assert bench.scheduler.is_quiet
    (drop,) = bench.go_ahead()
    assert drop.dropped == [seq] and not drop.rows
    bench.finish()
    assert bench.tokens(seq) == expected(PROMPT, 2)
    assert bench.scheduler.counters.ended["finished"] == 1


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_grammar_that_fails_ends_its_sequence_only(is_ahead: bool) -> None:
    """Its blocks are kept until the step ahead, which may write them, has ended."""
    bench = Bench()
    fails, goes_on = bench.add("a", PROMPT, 20), bench.add("b", [7, 8], 8)
    bench.step()
    assert len(bench.go_ahead() if is_ahead else bench.pump()) == 1 + is_ahead
    result = bench.rank.finish_step()
    sampled = [msgspec.structs.replace(one, error="too complex" if one.seq == fails else "") for one in result.sampled]
    for seq, output in bench.scheduler.apply_step(StepResult(result.step_id, sampled, result.seconds)):
        bench.outputs[seq].append(output)
    bench.scheduler.state.check()
    (*_, last) = bench.outputs[fails]
    assert isinstance(last, GrammarFailedError)
    assert bench.scheduler.load().running == 1, "its slot is free"
    run(bench)
    assert len(bench.tokens(fails)) == 1
    assert bench.tokens(goes_on) == expected([7, 8], 8)
    assert bench.scheduler.load().pinned_blocks == 0
    ended = bench.scheduler.counters.ended
    assert (ended["failed"], ended["aborted"]) == (1, 0), "its caller got an error"


def test_who_goes_on_does_so_while_another_one_is_finishing() -> None:
    bench = Bench()
    stops = bench.add("a", PROMPT, 20, stop_token_ids=stop_after(PROMPT, 2))
    goes_on = bench.add("b", [7, 8], 20)
    run(bench)
    assert bench.tokens(stops) == expected(PROMPT, 2)
    assert bench.tokens(goes_on) == expected([7, 8], 20)


def test_an_aborted_sequence_keeps_its_blocks_until_both_steps_have_ended() -> None:
    bench = Bench()
    seq = bench.add("a", PROMPT, 20)
    bench.step()
    assert len(bench.go_ahead()) == 2
    bench.scheduler.abort("a")
    bench.finish()
    assert bench.scheduler.state.sequences.by_id[seq].state is State.CLOSING
    assert bench.scheduler.load().pinned_blocks > 0
    bench.finish()
    assert bench.scheduler.load().pinned_blocks == 0
    assert bench.scheduler.counters.ended["aborted"] == 1
    assert len(bench.outputs[seq]) == 1


def test_blocks_of_dropped_tokens_are_not_kept_in_the_prefix_cache() -> None:
    """After the abort nobody here knows with which tokens the last block was filled."""
    bench = Bench(block_size=4)
    bench.add("a", PROMPT, 20)
    bench.step()
    assert len(bench.go_ahead()) == 2
    bench.scheduler.abort("a")
    bench.finish()
    bench.finish()
    # Positions 6 and 7 are computed, but the token at 7 was dropped.
    assert bench.scheduler.load().cached_blocks == 1
    again = bench.add("b", PROMPT, 20)
    run(bench)
    assert bench.tokens(again) == expected(PROMPT, 20)


def test_the_step_ahead_gets_the_block_that_it_begins() -> None:
    bench = Bench()
    seq = bench.add("a", [1, 2, 3], 20)
    bench.step()
    first, second = bench.go_ahead()
    assert [row.new_block_ids for row in first.rows] == [[]]
    (row,) = second.rows
    assert len(row.new_block_ids) == 1 and [block for block, _ in second.fresh] == row.new_block_ids
    run(bench)
    assert bench.tokens(seq) == expected([1, 2, 3], 20)


def test_without_a_block_for_it_no_step_goes_ahead() -> None:
    bench = Bench(num_blocks=4)
    first, second = bench.add("a", [1, 2, 3], 8), bench.add("b", [4, 5, 6], 8)
    bench.step()
    assert len(bench.go_ahead()) == 2
    bench.finish()
    bench.finish()
    while bench.scheduler.load().free_blocks or bench.scheduler.load().cached_blocks:
        bench.go_ahead()
        bench.finish()
    run(bench)
    assert bench.scheduler.counters.preemptions > 0
    assert bench.tokens(first) == expected([1, 2, 3], 8)
    assert bench.tokens(second) == expected([4, 5, 6], 8)


def test_a_prompt_that_waits_for_a_step_is_not_made_to_wait_longer() -> None:
    bench = Bench()
    first = bench.add("a", [1], 20)
    assert len(bench.go_ahead()) == 2
    second = bench.add("b", PROMPT, 20)
    bench.finish()
    assert bench.go_ahead() == []
    bench.finish()
    (mixed,) = bench.go_ahead()
    assert rows(mixed) == [(first, 2, 1, True), (second, 0, 6, True)]


def test_a_sequence_that_waits_for_a_slot_holds_nothing_up() -> None:
    bench = Bench(max_num_seqs=1)
    first = bench.add("a", [1], 20)
    second = bench.add("b", [2], 20)
    assert [rows(step) for step in bench.go_ahead()] == [[(first, 0, 1, True)], [(first, 1, 1, True)]]
    run(bench)
    assert bench.tokens(second) == expected([2], 20)


def test_a_sequence_that_waits_for_blocks_holds_nothing_up() -> None:
    bench = Bench(num_blocks=6)
    first = bench.add("a", [1] * 13, 4)
    bench.step()
    bench.add("b", [2] * 12, 4)
    assert [rows(step) for step in bench.go_ahead()] == [[(first, 13, 1, True)], [(first, 14, 1, True)]]


def test_a_hand_off_has_no_step_ahead() -> None:
    bench = Bench()
    bench.add("a", [1], 5, hand_off=True)
    assert len(bench.go_ahead()) == 1


def test_who_has_read_its_blocks_joins_the_step_ahead() -> None:
    bench = Bench()
    first = bench.add("a", [1], 20)
    second = bench.add_remote("b", PROMPT, 20)
    assert len(bench.go_ahead()) == 2
    bench.read(PROMPT)
    bench.finish()
    (joined,) = bench.go_ahead()
    assert rows(joined) == [(first, 2, 1, True), (second, 6, 1, True)]
    assert [new.seq for new in joined.started] == [second]
    run(bench)
    assert bench.tokens(second) == expected(PROMPT, 20)[1:]


def test_results_out_of_order_are_refused() -> None:
    bench = Bench()
    seq = bench.add("a", [1], 20)
    first, second = bench.go_ahead()
    with pytest.raises(RankProtocolError, match=f"step {second.step_id}, which is not under way"):
        bench.scheduler.apply_step(StepResult(second.step_id, [Sampled(seq, 1)], 0.1))
    bench.finish()
    with pytest.raises(RankProtocolError, match=f"step {first.step_id}, which is not under way"):
        bench.scheduler.apply_step(StepResult(first.step_id, [Sampled(seq, 1)], 0.1))

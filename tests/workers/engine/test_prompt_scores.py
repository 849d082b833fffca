"""Requests that are about their prompts: logprobs of its tokens, and answers without a token."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton_serve.core.protocol.steps import PromptScores
from baton_serve.workers.engine.api import FinishReason, PromptOutput, TokenOutput
from baton_serve.workers.engine.errors import RankProtocolError
from tests.kits.engine.fake_rank import score
from tests.kits.engine.requests import expected
from tests.kits.engine.scheduler_bench import Bench

PROMPT = [number % 7 for number in range(30)]


def scores_of(bench: Bench, seq_id: int) -> list[tuple[int, int]]:
    """The tokens that were scored: where each output begins, and behind its end. All of them must be right."""
    outputs = [item.scores for item in bench.outputs[seq_id] if isinstance(item, PromptOutput) and item.scores]
    for one in outputs:
        end = one.start + len(one.logprobs)
        assert (one.logprobs, one.ranks, one.top_tokens) == score(PROMPT, one.start, end, 2)
    return [(one.start, one.start + len(one.logprobs)) for one in outputs]


def test_a_long_prompt_is_scored_chunk_by_chunk() -> None:
    bench = Bench(max_num_batched_tokens=8)
    seq_id = bench.add("a", PROMPT, 2, scored=2)
    bench.run()
    assert scores_of(bench, seq_id) == [(1, 9), (9, 17), (17, 25), (25, 30)]
    kinds = [type(item) for item in bench.outputs[seq_id]]
    assert kinds == [PromptOutput] * 4 + [TokenOutput] * 2, "the last scores come with the first token, before it"
    assert bench.tokens(seq_id) == expected(PROMPT, 2)


def test_blocks_of_the_cache_are_not_used_for_it_and_its_own_are_for_others() -> None:
    bench = Bench(num_blocks=40)
    first = bench.add("a", PROMPT)
    bench.run()
    scored = bench.add("b", PROMPT, scored=2)
    bench.run()
    assert scores_of(bench, scored) == [(1, 17), (17, 30)]
    assert bench.tokens(scored) == bench.tokens(first)
    (begun,) = [item.num_cached_tokens for item in bench.outputs[scored] if isinstance(item, TokenOutput)][:1]
    assert begun == 0
    other = bench.add("c", [*PROMPT, 1, 2, 3])
    bench.run()
    assert bench.outputs[other][0].num_cached_tokens == 28


def test_others_use_what_a_scored_prompt_has_left_in_the_cache() -> None:
    bench = Bench()
    bench.add("a", PROMPT, 1, scored=2)
    bench.run()
    again = bench.add("b", PROMPT, 1)
    bench.run()
    assert bench.outputs[again][0].num_cached_tokens == 28


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_after_a_preemption_nothing_is_scored_twice(num_steps: int) -> None:
    """The blocks whose tokens have been scored may come from the cache then."""
    bench = Bench(max_num_batched_tokens=8)
    seq_id = bench.add("a", PROMPT, 2, scored=2)
    for _ in range(num_steps):
        bench.step()
    (seq,) = bench.scheduler.state.sequences.running
    bench.scheduler.state.preempt(seq)
    step = bench.step()
    assert step is not None
    (row,) = step.rows
    num_scored = 1 + 8 * num_steps
    assert (row.start, row.score_from) == (num_scored - 1, num_scored)
    bench.run()
    found = scores_of(bench, seq_id)
    assert [start for start, _ in found] == [1, *(end for _, end in found)][:-1]
    assert found[-1][1] == len(PROMPT)
    assert bench.tokens(seq_id) == expected(PROMPT, 2)


def test_a_block_whose_last_logits_are_missing_is_computed_again() -> None:
    bench = Bench(max_num_batched_tokens=7, max_num_seqs=2)
    seq_id = bench.add("a", PROMPT, 2, scored=2)
    bench.step()
    (seq,) = bench.scheduler.state.sequences.running
    assert (seq.num_computed, seq.num_scored) == (7, 8)
    bench.scheduler.state.preempt(seq)
    step = bench.step()
    assert step is not None
    assert [(row.start, row.num_tokens, row.score_from) for row in step.rows] == [(4, 7, 8)]
    bench.run()
    assert scores_of(bench, seq_id) == [(1, 8), (8, 12), (12, 19), (19, 26), (26, 30)]


def test_a_preempted_sequence_whose_prompt_is_scored_uses_the_cache_as_any_other() -> None:
    bench = Bench()
    seq_id = bench.add("a", PROMPT, 6, scored=2)
    bench.step(), bench.step(), bench.step()
    (seq,) = bench.scheduler.state.sequences.running
    assert seq.is_scored and seq.num_outputs == 2
    bench.scheduler.state.preempt(seq)
    step = bench.step()
    assert step is not None
    assert [(row.start, row.score_from) for row in step.rows] == [(28, 0)]
    bench.run()
    assert bench.tokens(seq_id) == expected(PROMPT, 6)


@pytest.mark.parametrize("scored", [None, 2])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 30])
def test_a_request_for_no_token_ends_with_its_prompt(length: int, scored: int | None) -> None:
    bench = Bench(max_num_batched_tokens=8)
    seq_id = bench.add("a", PROMPT[:length], 0, scored=scored)
    bench.run()
    last = bench.outputs[seq_id].pop()
    assert last == PromptOutput(finish=FinishReason.LENGTH)
    assert sum(end - start for start, end in scores_of(bench, seq_id)) == (length - 1 if scored else 0)
    assert bench.scheduler.is_quiet
    bench.rank.records.clear()
    assert bench.scheduler.pool.stats().pinned == 0


def test_a_request_for_no_token_may_find_its_prompt_in_the_cache() -> None:
    bench = Bench()
    bench.add("a", PROMPT, 1)
    bench.run()
    seq_id = bench.add("b", PROMPT, 0)
    bench.run()
    assert bench.outputs[seq_id] == [PromptOutput(finish=FinishReason.LENGTH, num_cached_tokens=28)]


def test_an_aborted_request_gets_no_scores_of_the_step_under_way() -> None:
    bench = Bench(max_num_batched_tokens=8)
    seq_id = bench.add("a", PROMPT, scored=2)
    bench.step()
    bench.pump()
    assert bench.scheduler.abort("a") == seq_id
    bench.finish()
    assert scores_of(bench, seq_id) == [(1, 9)]
    bench.run()
    assert bench.scheduler.is_quiet


def test_a_step_that_scores_is_not_gone_ahead_of() -> None:
    bench = Bench(steps_ahead=True, max_num_batched_tokens=8)
    bench.add("a", [1, 2, 3], 20)
    bench.step()
    seq_id = bench.add("b", PROMPT, 4, scored=2)
    for _ in range(5):
        assert len(bench.go_ahead()) == 1
        bench.finish()
    assert scores_of(bench, seq_id)[-1][1] == len(PROMPT)
    assert len(bench.go_ahead()) == 2, "both only decode now"


@pytest.mark.parametrize(
    "changes",
    [
        {"start": 2},
        {"seq": 77},
        {"logprobs": [-1.0]},
        {"ranks": []},
        {"top_tokens": [[1]]},
        {"top_logprobs": []},
    ],
)
def test_other_scores_than_those_asked_for_are_a_fault(changes: dict[str, Any]) -> None:
    bench = Bench()
    bench.add("a", PROMPT, scored=2)
    bench.pump()
    result = bench.rank.finish_step()
    (scores,) = result.scores
    wrong = msgspec.structs.replace(scores, **changes)
    for given in ([wrong], [], [scores, scores]):
        with pytest.raises(RankProtocolError, match="scored"):
            bench.scheduler.apply_step(msgspec.structs.replace(result, scores=given))
    assert bench.scheduler.apply_step(result) == [(1, PromptOutput(scores))]


def test_scores_that_nobody_asked_for_are_a_fault() -> None:
    bench = Bench()
    bench.add("a", PROMPT)
    bench.pump()
    result = bench.rank.finish_step()
    scores = PromptScores(1, 1, [-1.0], [1], [[]], [[]])
    with pytest.raises(RankProtocolError, match="scored"):
        bench.scheduler.apply_step(msgspec.structs.replace(result, scores=[scores]))

"""Sequences that go on after tokens from elsewhere: every block holds what it should, every token is the right one."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.steps import Step
from baton_serve.workers.engine.api import (
    EngineRequest,
    FinishReason,
    HandOff,
    InvalidHandOffError,
    PromptTooLongError,
    TokenOutput,
)
from baton_serve.workers.engine.scheduling.scheduler import Scheduler
from tests.kits.engine.fake_rank import FakeRank
from tests.kits.engine.requests import BLOCK_SIZE, VOCAB, config, expected, params, params_of, request

PROMPT = [1, 2, 3, 4, 5, 6]
MAX_TOKENS = 9
ALL = expected(PROMPT, MAX_TOKENS)
CUTS = range(1, MAX_TOKENS)


class Bench:
    """A scheduler and a rank that checks what each row attends to."""

    def __init__(self, **changes: Any) -> None:
        self.scheduler = Scheduler(config(**changes), 0)
        self.rank = FakeRank(self.scheduler.pool, VOCAB)
        self.steps: list[Step] = []
        self.outputs: dict[int, list[TokenOutput]] = {}

    def add(self, one: EngineRequest) -> int:
        seq_id = self.scheduler.add(one)
        self.outputs[seq_id] = []
        return seq_id

    def read(self, seq_id: int, held: list[int], outcome: str = "done", stale: list[int] | None = None) -> None:
        self.scheduler.connected(seq_id)
        self.pump()
        (read_id,) = self.rank.reads
        assert self.scheduler.apply_read(self.rank.finish_read(read_id, outcome, held, stale)) is None

    def pump(self) -> bool:
        commands = self.scheduler.schedule()
        for command in commands:
            self.rank.receive(command)
        self.scheduler.state.check()
        self.steps += [command for command in commands if isinstance(command, Step)]
        return any(isinstance(command, Step) for command in commands)

    def run(self) -> None:
        while self.pump():
            for seq_id, item in self.scheduler.apply_step(self.rank.finish_step()):
                assert isinstance(item, TokenOutput)
                self.outputs[seq_id].append(item)
            self.scheduler.state.check()

    def tokens(self, seq_id: int) -> list[int]:
        return [output.token for output in self.outputs[seq_id]]


def resumed(name: str, cut: int, max_tokens: int = MAX_TOKENS, **fields: Any) -> EngineRequest:
    return request(name, PROMPT, max_tokens, output_token_ids=ALL[:cut], **fields)


def at_d(cut: int, **changes: Any) -> EngineRequest:
    """D's, after P was given ``cut`` tokens."""
    fields = {"prompt_token_ids": PROMPT, "output_token_ids": ALL[:cut], **changes}
    return resumed("d", cut, remote=params(PROMPT + ALL[:cut], **fields))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("budget", [4, 16])
def test_the_rest_is_the_rest(cut: int, budget: int) -> None:
    bench = Bench(max_num_batched_tokens=budget)
    seq = bench.add(resumed("a", cut))
    bench.run()
    assert bench.tokens(seq) == ALL[cut:]
    assert bench.outputs[seq][-1].finish is FinishReason.LENGTH
    (started,) = bench.steps[0].started
    assert (started.prompt_token_ids, started.output_token_ids) == (PROMPT, ALL[:cut])


def hand_off(bench: Bench, cut: int) -> HandOff:
    seq = bench.add(resumed("p", cut, cut + 1, hand_off=True))
    bench.run()
    (output,) = bench.outputs[seq]
    assert (output.token, output.finish) == (ALL[cut], FinishReason.LENGTH)
    assert output.hand_off is not None
    return output.hand_off


@pytest.mark.parametrize("cut", CUTS)
def test_p_hands_over_prompt_and_tokens(cut: int) -> None:
    bench = Bench()
    handed = hand_off(bench, cut)
    held = PROMPT + ALL[:cut]
    assert len(handed.block_ids) == -(-len(held) // BLOCK_SIZE)
    assert bench.scheduler.pool.stats().leased == len(handed.block_ids)


def test_p_finds_what_it_computed_for_the_one_before() -> None:
    bench = Bench()
    first = bench.add(request("a", PROMPT, MAX_TOKENS))
    bench.run()
    bench.steps.clear()
    seq = bench.add(resumed("p", 7, 8, hand_off=True))
    bench.run()
    assert bench.tokens(first) == ALL
    assert bench.steps[0].rows[0].start == 12
    assert bench.outputs[seq][0].num_cached_tokens == len(PROMPT)  # of the prompt, not of its answer


@pytest.mark.parametrize("cut", CUTS[:-1])
@pytest.mark.parametrize("stale", [None, [0], [1]])
def test_d_reads_prompt_and_tokens(cut: int, stale: list[int] | None) -> None:
    """Or computes them, from the first stale block on."""
    bench = Bench()
    seq = bench.add(at_d(cut, first_token=ALL[cut]))
    held = PROMPT + ALL[:cut]
    bench.read(seq, held, "stale" if stale else "done", stale)
    bench.run()
    assert bench.tokens(seq) == ALL[cut + 1 :]
    assert bench.steps[0].rows[0].start == (stale[0] * BLOCK_SIZE if stale else len(held))


@pytest.mark.parametrize("cut", CUTS)
def test_d_samples_the_first_token_if_p_did_not(cut: int) -> None:
    bench = Bench()
    seq = bench.add(at_d(cut, first_token=-1))
    bench.read(seq, PROMPT + ALL[:cut])
    bench.run()
    assert bench.tokens(seq) == ALL[cut:]


@pytest.mark.parametrize("cut", CUTS[:-1])
def test_what_this_engine_handed_over_is_taken_over(cut: int) -> None:
    bench = Bench(engine_id="us")
    held = PROMPT + ALL[:cut]
    remote = params_of(
        hand_off(bench, cut), held, "us", prompt_token_ids=PROMPT, output_token_ids=ALL[:cut], first_token=ALL[cut]
    )
    bench.steps.clear()
    seq = bench.add(resumed("d", cut, remote=remote))
    bench.run()
    assert bench.tokens(seq) == ALL[cut + 1 :]
    assert bench.steps[0].rows[0].start == len(held)
    assert bench.scheduler.counters.local_handoffs == 1


def test_a_lease_of_other_tokens_is_not_taken_over() -> None:
    bench = Bench(engine_id="us", prefix_cache=False)
    handed = hand_off(bench, 3)
    other = [ALL[0], ALL[1], (ALL[2] + 1) % VOCAB]
    remote = params_of(
        handed, PROMPT + other, "us", prompt_token_ids=PROMPT, output_token_ids=other, first_token=ALL[3]
    )
    seq = bench.add(request("d", PROMPT, MAX_TOKENS, output_token_ids=other, remote=remote))
    bench.run()
    assert bench.tokens(seq) == expected([*PROMPT, *other, ALL[3]], MAX_TOKENS - 4)
    assert bench.scheduler.counters.local_handoffs == 0


def test_it_is_preempted_like_any_other() -> None:
    bench = Bench(num_blocks=5)
    first = bench.add(request("a", PROMPT, 8, priority=-1))
    second = bench.add(resumed("b", 2, 8))
    bench.run()
    assert bench.scheduler.counters.preemptions > 0
    assert (bench.tokens(first), bench.tokens(second)) == (ALL[:8], ALL[2:8])


def test_tokens_that_leave_no_room_are_refused() -> None:
    bench = Bench(max_model_len=16)
    with pytest.raises(PromptTooLongError):
        bench.add(request("a", PROMPT, 99, output_token_ids=[1] * 10))
    assert bench.scheduler.is_quiet


@pytest.mark.parametrize("changes", [{"remote_num_tokens": len(PROMPT)}, {"remote_block_ids": [[1, 2]]}])
def test_parameters_that_contradict_the_request_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidHandOffError):
        Bench().add(at_d(3, **changes))

"""What a step does for a row does not grow with its prompt, or with lists that its client sent."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch

from baton_serve.core.protocol.steps import NewSequence, SamplingParams
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.sampling.sampler import sample
from baton_serve.workers.rank.sequences import RankSequence, SequenceTable

VOCAB = 20_000


def lists(length: int) -> dict[str, dict[str, Any]]:
    """Parameters by name, with lists of so many tokens."""
    tokens = tuple(range(1, length + 1))
    return {
        "allowed": {"allowed_token_ids": tokens},
        "ends": {"min_tokens": 2 * VOCAB, "min_tokens_banned": tokens},
        "bias": {"logit_bias": dict.fromkeys(tokens, -1.0)},
        "words": {"bad_words": tuple((token,) for token in tokens)},
        "long words": {"bad_words": tuple((1, token) for token in tokens)},
        "a word": {"bad_words": (tokens,)},
        "repetition": {"repetition_penalty": 1.2},
        "frequency": {"frequency_penalty": 0.1},
        "presence": {"presence_penalty": 0.1},
    }


def started(prompt: list[int], outputs: list[int], params: dict[str, Any]) -> RankSequence:
    table = SequenceTable(VOCAB, 4 * VOCAB, 16, 1, GrammarLibrary(print, VOCAB), {})
    table.start(NewSequence(0, prompt, outputs, SamplingParams(temperature=0.0, **params), []))
    return table._by_id[0]


def tensors(sequence: RankSequence) -> list[torch.Tensor | None]:
    assert sequence.edits is not None
    return [sequence.edits.allowed, sequence.edits.repeated, sequence.edits.subtracted]


def lines_of_a_step(sequence: RankSequence) -> int:
    """Lines of Python that run for the next token of a sequence."""
    count = 0

    def traced(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    before = sys.gettrace()
    sys.settrace(traced)
    try:
        (draw,) = sample(logits, [sequence])
        sequence.append(draw.token)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", lists(1))
def test_a_step_costs_as_much_for_long_lists_as_for_short_ones(name: str) -> None:
    short, long = (
        lines_of_a_step(started(list(range(1, length + 1)), list(range(1, length + 1)), lists(length)[name]))
        for length in (8, 12_000)
    )
    assert long == short


@pytest.mark.parametrize("name", ["repetition", "frequency", "presence", "allowed"])
def test_what_concerns_many_tokens_is_made_once_and_added_to(name: str) -> None:
    """Neither a prompt nor an output is looked through again, in Python or in any other way."""
    sequence = started([3, 4, 5], [1, 2], lists(6)[name])
    (before,) = (tensor for tensor in tensors(sequence) if tensor is not None)
    sample(torch.randn(1, VOCAB), [sequence])
    sequence.append(7)
    (after,) = (tensor for tensor in tensors(sequence) if tensor is not None)
    assert after is before
    assert before.shape == (VOCAB,)


@pytest.mark.parametrize("name", lists(1))
def test_what_each_token_changes_is_what_a_fresh_start_would_make(name: str) -> None:
    """As after a preemption, or at the D that goes on with an answer of another."""
    prompt, outputs, params = [3, 4, 5, 5], [1, 2, 2, 1, 1, 3], lists(6)[name]
    going = started(prompt, [], params)
    for token in outputs:
        going.append(token)
    fresh = started(prompt, outputs, params)
    assert going.edits is not None and fresh.edits is not None
    assert going.edits.banned() == fresh.edits.banned()
    for of_going, of_fresh in zip(tensors(going), tensors(fresh), strict=True):
        assert (of_going is None) == (of_fresh is None)
        assert of_going is None or torch.equal(of_going, of_fresh)


@pytest.mark.parametrize("last", [VOCAB, -1])
def test_tokens_that_the_model_does_not_have_change_nothing(last: int) -> None:
    """As the tokens that a tokenizer has beyond its model, which the words of a client become."""
    params = {
        "bad_words": ((last,), (1, last), (last, 5), (1, 4)),
        "logit_bias": {last: 1.0},
        "allowed_token_ids": (4, 5, last),
        "min_tokens": 9,
        "min_tokens_banned": (last,),
    }
    sequence = started([3], [1], params)
    (draw,) = sample(torch.arange(VOCAB, 0, -1.0)[None], [sequence])
    assert draw.token == 5

"""Distributions, supports, penalties, logprobs of the sampler; every number has a fixed seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from baton_serve.core.protocol.steps import NewSequence, SamplingParams
from baton_serve.workers.rank.row_edits import row_edits
from baton_serve.workers.rank.sampling.sampler import sample, truncate
from baton_serve.workers.rank.sequences import RankSequence

VOCAB = 50


def sequence(
    sampling: SamplingParams, prompt: Sequence[int] = (1,), outputs: Sequence[int] = (), vocab_size: int = VOCAB
) -> RankSequence:
    return RankSequence(NewSequence(0, [*prompt], [*outputs], sampling, []), vocab_size)


def logits_of(num_rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def tokens_of(logits: torch.Tensor, rows: list[RankSequence]) -> list[int]:
    return [draw.token for draw in sample(logits, rows)]


def histogram(logits: torch.Tensor, params: dict[str, float], count: int = 20_000) -> Counter[int]:
    """Tokens drawn from one distribution with ``count`` seeds."""
    rows = [sequence(SamplingParams(seed=seed, **params)) for seed in range(count)]
    return Counter(tokens_of(logits.expand(count, -1), rows))


def chi_square(seen: Counter[int], means: torch.Tensor) -> float:
    return sum((seen[token] - mean) ** 2 / mean for token, mean in enumerate(means.tolist()))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = logits_of(1, vocab=12) * 0.5
    count = 20_000
    seen = histogram(logits, {"temperature": temperature}, count)
    expected = (logits[0] / temperature).softmax(-1) * count
    assert chi_square(seen, expected) < 31.3  # 99.9 % of 11 degrees of freedom


def test_positions_of_one_seed_are_as_good_as_seeds() -> None:
    logits = logits_of(1, vocab=8) * 0.5
    count = 10_000
    rows = [sequence(SamplingParams(seed=1), prompt=[0] * (1 + position)) for position in range(count)]
    seen = Counter(tokens_of(logits.expand(count, -1), rows))
    expected = logits[0].softmax(-1) * count
    assert chi_square(seen, expected) < 24.3  # 99.9 % of 7 degrees of freedom


def test_the_same_seed_and_position_give_the_same_token_in_any_row(device: str) -> None:
    logits = logits_of(1).to(device)
    wanted = sequence(SamplingParams(seed=9), prompt=[1, 2, 3])
    alone = tokens_of(logits, [wanted])[0]
    others = [
        sequence(SamplingParams(seed=1)),
        sequence(SamplingParams(temperature=0)),
        sequence(SamplingParams(seed=3, top_k=2)),
    ]
    for place in range(4):
        rows = [*others[:place], wanted, *others[place:]]
        batch = torch.cat([logits_of(place, 5).to(device), logits, logits_of(3 - place, 6).to(device)])
        assert tokens_of(batch, rows)[place] == alone
    # As an output instead of a prompt token the position is the same; one further on it is not.
    assert tokens_of(logits, [sequence(SamplingParams(seed=9), prompt=[1], outputs=[2, 3])])[0] == alone
    further = {tokens_of(logits, [sequence(SamplingParams(seed=9), prompt=[1] * n)])[0] for n in range(4, 30)}
    assert len(further) > 3


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_greedy(temperature: float) -> None:
    logits = logits_of(3)
    rows = [sequence(SamplingParams(temperature=temperature, seed=seed)) for seed in range(3)]
    assert tokens_of(logits, rows) == logits.argmax(-1).tolist()


def test_half_precision_logits_are_taken() -> None:
    logits = logits_of(2).to(torch.bfloat16)
    rows = [sequence(SamplingParams(temperature=0)), sequence(SamplingParams(temperature=0, num_logprobs=1))]
    assert tokens_of(logits, rows) == logits.float().argmax(-1).tolist()


def kept(logits: torch.Tensor, **params: float) -> set[int]:
    scores = truncate(logits, [SamplingParams(**params)])  # type: ignore[arg-type]
    return set(scores[0].isfinite().nonzero().flatten().tolist())


def by_probability(logits: torch.Tensor) -> list[tuple[float, int]]:
    return sorted(((float(p), i) for i, p in enumerate(logits[0].softmax(-1))), reverse=True)


@pytest.mark.parametrize("top_k", [1, 3, 49])
def test_top_k_keeps_the_most_likely(top_k: int) -> None:
    logits = logits_of(1, 1)
    assert kept(logits, top_k=top_k) == {token for _, token in by_probability(logits)[:top_k]}


@pytest.mark.parametrize("top_k", [0, -1, 50, 1000])
def test_top_k_that_means_all(top_k: int) -> None:
    assert len(kept(logits_of(1), top_k=top_k)) == VOCAB


@pytest.mark.parametrize("top_p", [1e-300, 1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float) -> None:
    logits = logits_of(1, 2)
    expected, mass = set(), 0.0
    for probability, token in by_probability(logits):
        expected.add(token)
        mass += probability
        if mass >= top_p:
            break
    assert kept(logits, top_p=top_p) == expected


def test_top_p_works_on_what_top_k_leaves() -> None:
    logits = logits_of(1, 3)
    ranked = by_probability(logits)[:4]
    total = sum(p for p, _ in ranked)
    top_p = (ranked[0][0] + ranked[1][0]) / total - 1e-4
    assert kept(logits, top_k=4, top_p=top_p) == {token for _, token in ranked[:2]}


@pytest.mark.parametrize("min_p", [0.01, 0.3, 1.0])
def test_min_p_is_relative_to_the_most_likely(min_p: float) -> None:
    logits = logits_of(1, 4)
    ranked = by_probability(logits)
    assert kept(logits, min_p=min_p) == {token for p, token in ranked if p >= min_p * ranked[0][0] * (1 - 1e-6)}


def test_ties_with_the_last_one_kept_are_kept() -> None:
    assert kept(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), top_k=1) == {1, 2}


def test_rows_are_truncated_by_their_own_parameters() -> None:
    logits = logits_of(4, 5)
    params = [{"top_k": 2}, {}, {"top_p": 0.3}, {"min_p": 0.5}]
    together = truncate(logits, [SamplingParams(**one) for one in params])
    for row, one in enumerate(params):
        assert set(together[row].isfinite().nonzero().flatten().tolist()) == kept(logits[row : row + 1], **one)


def test_draws_stay_inside_the_support() -> None:
    logits = logits_of(1, 6)
    assert set(histogram(logits, {"top_k": 3}, 2000)) == {token for _, token in by_probability(logits)[:3]}


def penalized(logits: torch.Tensor, row: RankSequence) -> torch.Tensor:
    """The definitions, one token at a time."""
    params, outputs = row.sampling, row.tokens[row.num_prompt :]
    result = logits.clone().tolist()
    for token in range(len(result)):
        result[token] += params.logit_bias.get(token, 0.0)
        if token in params.min_tokens_banned and len(outputs) < params.min_tokens:
            result[token] = -math.inf
        if token in row.tokens:
            factor = params.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        count = outputs.count(token)
        result[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return torch.tensor(result)


PENALTIES = [
    SamplingParams(temperature=0, repetition_penalty=1.5),
    SamplingParams(temperature=0, repetition_penalty=0.5),
    SamplingParams(temperature=0, frequency_penalty=0.7),
    SamplingParams(temperature=0, presence_penalty=2.0),
    SamplingParams(temperature=0, presence_penalty=-1.0, frequency_penalty=-0.3, repetition_penalty=1.2),
    SamplingParams(temperature=0, logit_bias={4: 100.0, 5: -3.0}),
    SamplingParams(temperature=0, min_tokens=9, min_tokens_banned=(1, 2, 3)),
    SamplingParams(temperature=0, min_tokens=8, min_tokens_banned=(1, 2, 3)),
    SamplingParams(temperature=0),
]


def test_penalties_are_as_defined() -> None:
    from baton_serve.workers.rank.sampling.logit_edits import edit

    logits = logits_of(len(PENALTIES), 7)
    before = logits.clone()
    rows = [sequence(params, prompt=[0, 1, 2, 2], outputs=[1, 2, 3, 3, 3, 6, 7, 7]) for params in PENALTIES]
    edited = edit(logits, rows)
    for index, row in enumerate(rows):
        assert torch.allclose(edited[index], penalized(before[index], row)), PENALTIES[index]
    assert torch.equal(logits, before), "the raw logits are still needed for logprobs"


def test_a_ban_holds_until_min_tokens_and_a_bias_for_no_token_is_nothing() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    banned = SamplingParams(temperature=0, min_tokens=2, min_tokens_banned=(0,), logit_bias={3: 100.0, -1: 100.0})
    assert tokens_of(logits, [sequence(banned, outputs=[2], vocab_size=3)]) == [1]
    assert tokens_of(logits, [sequence(banned, outputs=[2, 2], vocab_size=3)]) == [0]


def test_a_step_copies_no_logits_for_bans_that_are_over() -> None:
    from baton_serve.workers.rank.sampling.logit_edits import edit

    row = sequence(SamplingParams(temperature=0, min_tokens=2, min_tokens_banned=(0,)), outputs=[2])
    logits = logits_of(1)
    assert edit(logits, [row]) is not logits
    row.append(2)
    assert edit(logits, [row]) is logits


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = logits_of(3, 8)
    rows = [
        sequence(SamplingParams(seed=1, temperature=0.3, top_k=2, logit_bias={7: 50.0}, num_logprobs=3)),
        sequence(SamplingParams(seed=2)),
        sequence(SamplingParams(temperature=0, num_logprobs=0)),
    ]
    draws = sample(logits, rows)
    expected = logits.log_softmax(-1)
    assert draws[0].token == 7
    assert draws[0].logprob == pytest.approx(float(expected[0, 7]), abs=1e-5)
    assert draws[0].top is not None
    values, tokens = expected[0].topk(3)
    assert [token for token, _ in draws[0].top] == tokens.tolist()
    assert [logprob for _, logprob in draws[0].top] == pytest.approx(values.tolist(), abs=1e-5)
    assert (draws[1].logprob, draws[1].top) == (None, None)
    assert draws[2].top == []
    assert draws[2].logprob == pytest.approx(float(expected[2].max()), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "outputs", "banned"),
    [
        ([(7,)], [], [7]),
        ([(7,), (8, 9)], [8], [7, 9]),
        ([(8, 9)], [9], []),
        ([(4, 5, 6)], [5], []),  # the prompt ends with 4, which is none of the output's
        ([(4, 5, 6)], [4, 5], [6]),
        ([(4, 5, 6)], [4, 5, 5], []),
    ],
)
def test_a_word_is_the_outputs_own(words: list[tuple[int, ...]], outputs: list[int], banned: list[int]) -> None:
    edits = row_edits(SamplingParams(bad_words=tuple(words)), VOCAB, [1, 4], outputs)
    assert edits is not None and [*edits.banned()] == banned


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_banned_word_is_never_completed(temperature: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 50.0
    for outputs, is_banned in (([3], True), ([2], False)):
        params = SamplingParams(temperature=temperature, bad_words=((3, 7),), logit_bias={7: 100.0})
        (token,) = tokens_of(logits, [sequence(params, outputs=outputs)])
        assert (token != 7) == is_banned


@pytest.mark.parametrize("more", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.2}, {"repetition_penalty": 2.0}])
def test_only_allowed_tokens_are_sampled(more: dict[str, Any]) -> None:
    allowed = (3, 17, 40, VOCAB + 5)
    rows = [sequence(SamplingParams(seed=seed, allowed_token_ids=allowed, **more)) for seed in range(64)]
    assert set(tokens_of(logits_of(64), rows)) <= set(allowed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_left_the_allowed_tokens_are(temperature: float) -> None:
    logits = logits_of(4)
    drawn: dict[str, Any] = {"temperature": temperature, "seed": 1}
    one = SamplingParams(**drawn, allowed_token_ids=(5,), bad_words=((5,),))
    ended = SamplingParams(**drawn, allowed_token_ids=(6,), min_tokens=3, min_tokens_banned=(6,))
    all_words = SamplingParams(**drawn, bad_words=tuple((token,) for token in range(VOCAB)))
    free = sequence(SamplingParams(**drawn))
    tokens = tokens_of(logits, [sequence(one), sequence(ended), sequence(all_words), free])
    assert tokens == [5, 6, *tokens_of(logits[2:], [free, free])]


def test_other_rows_of_the_batch_are_as_without() -> None:
    logits, free = logits_of(3), sequence(SamplingParams(seed=1))
    alone = tokens_of(logits[1:2], [free])
    narrow = sequence(SamplingParams(seed=1, allowed_token_ids=(5,), bad_words=((1,),)))
    assert tokens_of(logits, [narrow, free, narrow]) == [5, *alone, 5]

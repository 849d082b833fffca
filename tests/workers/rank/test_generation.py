"""Tokens through the paged cache against transformers' own generate, on the same weights in float32."""

from __future__ import annotations

import pytest
import torch

from baton_serve.core.protocol.steps import NewSequence, Row, SamplingParams, Step
from tests.kits.rank.driver import Driver, Job, prompt
from tests.kits.rank.models import Models, References

ARCHITECTURES = ["llama", "qwen3", "qwen2", "mistral", "qwen3_mixed", "mixtral", "gpt2"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_generate(architecture: str, device: str, model_of: Models, reference_of: References) -> None:
    reference = reference_of(architecture)
    lengths = [1, 2, 15, 16, 17, 33, 100, 260]
    jobs = [Job(prompt(n, 0), 20, chunk=[5, 7, 13, 64, 1000][i % 5]) for i, n in enumerate(lengths)]
    got = Driver(model_of(architecture, device)).run(jobs)
    assert got == [reference.generate(job.prompt, 20) for job in jobs]
    assert len({tuple(tokens) for tokens in got}) == len(jobs), "the prompts must matter"


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_greedy_equals_generate_for_any_block_size(block_size: int, model_of: Models, reference_of: References) -> None:
    reference = reference_of("mistral")
    jobs = [Job(prompt(n, 1), 8, chunk=11) for n in (3, 31, 70)]
    got = Driver(model_of("mistral", "cpu", block_size)).run(jobs)
    assert got == [reference.generate(job.prompt, 8) for job in jobs]


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_logprobs_are_those_of_the_model(architecture: str, model_of: Models, reference_of: References) -> None:
    job = Job(prompt(40, 2), 5, SamplingParams(temperature=0.0, num_logprobs=4))
    Driver(model_of(architecture)).run([job])
    for index, sampled in enumerate(job.sampled):
        expected = reference_of(architecture).logprobs(job.prompt + job.outputs[:index])
        values, tokens = expected.topk(4)
        assert sampled.top is not None
        assert [token for token, _ in sampled.top] == tokens.tolist()
        assert [logprob for _, logprob in sampled.top] == pytest.approx(values.tolist(), abs=1e-4)
        assert sampled.logprob == pytest.approx(float(expected[sampled.token]), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_a_preempted_sequence_goes_on_with_the_same_tokens(
    architecture: str, temperature: float, model_of: Models
) -> None:
    params = SamplingParams(temperature=temperature, seed=11)
    quiet, disturbed = ([Job(prompt(n, 3), 24, params) for n in (20, 50)] for _ in range(2))
    expected = Driver(model_of(architecture)).run(quiet)
    driver = Driver(model_of(architecture), seed=1)
    for _ in range(12):
        driver.advance(disturbed)
    assert 0 < len(disturbed[1].outputs) < 24
    driver.preempt(disturbed[1])
    assert driver.run(disturbed) == expected


def test_a_first_token_from_elsewhere_is_continued(model_of: Models) -> None:
    params = SamplingParams(temperature=1.0, seed=6)
    whole = Job(prompt(30, 6), 10, params)
    Driver(model_of("llama")).run([whole])
    rest = Job(prompt(30, 6), 9, params, outputs=[whole.outputs[0]])
    Driver(model_of("llama"), seed=3).run([rest])
    assert rest.outputs == whole.outputs


def test_dropped_sequences_are_forgotten(model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    start = [NewSequence(seq, [5, 6], [], SamplingParams(temperature=0.0), [seq]) for seq in (1, 2)]
    driver.runner.execute(Step(1, [], [], start, []))
    driver.runner.execute(Step(2, [], [1, 77], [], [Row(2, 0, 2, [], True)]))
    assert len(driver.runner.sequences) == 1


def test_a_half_computed_prompt_samples_nothing(model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    start = NewSequence(1, [5, 6, 7], [], SamplingParams(temperature=0.0), [0])
    result = driver.runner.execute(Step(1, [], [], [start], [Row(1, 0, 2, [], False)]))
    assert result.sampled == []
    assert not torch.equal(driver.cache.tensor[0], torch.zeros_like(driver.cache.tensor[0]))

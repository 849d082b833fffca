"""Logprobs of prompts, computed with the paged cache, against a whole forward pass of transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.rank import distributed
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.loading.layers_once import layers_once
from baton_serve.workers.rank.runner import Runner
from baton_serve.workers.rank.sampling import prompt_scores
from tests.kits.rank.driver import Driver, Job, Reference, prompt
from tests.kits.rank.models import Models, References

VOCAB_SIZE = 384


def scored(num_top: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, num_prompt_logprobs=num_top)


def check(job: Job, reference: Reference, num_top: int) -> None:
    """Each token but the first was scored once, in order, with the numbers of the reference."""
    expected = reference.all_logprobs(job.prompt)
    index = 1
    for scores in job.scores:
        assert scores.start == index
        for logprob, rank, tokens, values in zip(
            scores.logprobs, scores.ranks, scores.top_tokens, scores.top_logprobs, strict=True
        ):
            at = expected[index - 1]
            assert logprob == pytest.approx(float(at[job.prompt[index]]), abs=1e-4)
            assert rank == int((at >= at[job.prompt[index]]).sum())
            best = at.topk(num_top)
            assert tokens == best.indices.tolist()
            assert values == pytest.approx(best.values.tolist(), abs=1e-4)
            if job.prompt[index] in tokens:
                assert logprob == values[tokens.index(job.prompt[index])], "one number for one token"
            index += 1
    assert index == len(job.prompt)


@pytest.fixture
def heads(model_of: Models) -> Iterator[list[int]]:
    """The number of rows of each tensor of logits that the model of ``llama`` has computed."""
    counts: list[int] = []
    head = model_of("llama").module.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, given, out: counts.append(out.shape[-2]))
    yield counts
    hook.remove()


@pytest.mark.parametrize("architecture", ["llama", "qwen3_mixed", "mixtral", "gpt2"])
def test_scores_are_those_of_the_model(
    architecture: str, device: str, model_of: Models, reference_of: References
) -> None:
    chunks = [5, 7, 13, 64, 1000]
    jobs = [
        Job(prompt(n, 0), 3, scored(4 + i % 2), chunk=chunks[i % 5]) for i, n in enumerate([1, 2, 15, 17, 33, 100, 260])
    ]
    plain = Job(prompt(40, 1), 3, chunk=9)
    Driver(model_of(architecture, device)).run([*jobs, plain])
    reference = reference_of(architecture)
    for i, job in enumerate(jobs):
        check(job, reference, 4 + i % 2)
        assert job.outputs == reference.generate(job.prompt, 3)
    assert plain.scores == []
    assert plain.outputs == reference.generate(plain.prompt, 3)


def test_a_preempted_prompt_is_scored_on(model_of: Models, reference_of: References) -> None:
    job = Job(prompt(60, 2), 4, scored(2), chunk=11)
    driver = Driver(model_of("llama"))
    for _ in range(3):
        driver.advance([job])
    assert job.scores[-1].start + len(job.scores[-1].logprobs) == 34
    driver.preempt(job)
    driver.run([job])
    check(job, reference_of("llama"), 2)


def test_only_the_own_logprobs_are_reported_if_no_others_are_wanted(model_of: Models, reference_of: References) -> None:
    job = Job(prompt(20, 3), 1, scored(0))
    Driver(model_of("llama")).run([job])
    check(job, reference_of("llama"), 0)
    assert all(one == [] for scores in job.scores for one in (*scores.top_tokens, *scores.top_logprobs))


def test_the_logits_of_a_long_prompt_are_never_in_memory_at_once(
    model_of: Models, reference_of: References, heads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MAX_LOGITS", 7 * VOCAB_SIZE)
    jobs = [Job(prompt(n, 4), 1, scored(2), chunk=1000) for n in (200, 90)]
    Driver(model_of("llama")).run(jobs)
    for job in jobs:
        check(job, reference_of("llama"), 2)
    num_scored = 199 + 89
    assert max(heads) == 7, "the largest tensor of logits"
    assert heads == [2, *[7] * (num_scored // 7), num_scored % 7], "each token's logits are computed once"


def test_only_the_first_pass_computes_the_layers(reference_of: References) -> None:
    module = reference_of("llama").model
    calls: list[int] = []
    hook = module.base_model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    ids = torch.tensor([prompt(9, 5)])
    with torch.inference_mode():
        whole = module(input_ids=ids, use_cache=False).logits
        with layers_once(module, selects_logits=True):
            parts = [module(input_ids=ids, use_cache=False, logits_to_keep=torch.tensor([i])).logits for i in range(9)]
        again = module(input_ids=ids, use_cache=False).logits
    hook.remove()
    assert len(calls) == 3
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)
    assert torch.equal(again, whole)


def test_a_model_that_computes_all_logits_anyway_does_it_once(
    model_of: Models, reference_of: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MAX_LOGITS", 5 * VOCAB_SIZE)
    model = replace(model_of("llama"), selects_logits=False)
    calls: list[int] = []
    hook = model.module.lm_head.register_forward_hook(lambda *_: calls.append(1))
    job = Job(prompt(30, 6), 1, scored(1), chunk=40)
    Driver(model).run([job])
    hook.remove()
    check(job, reference_of("llama"), 1)
    assert len(calls) == 1


def test_a_model_whose_layers_are_not_found_computes_them_each_time(
    model_of: Models, reference_of: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MAX_LOGITS", 5 * VOCAB_SIZE)
    model = model_of("llama")
    monkeypatch.setattr(type(model.module), "base_model_prefix", "elsewhere")
    assert model.module.base_model is model.module
    job = Job(prompt(30, 6), 2, scored(1), chunk=12)
    Driver(model).run([job])
    check(job, reference_of("llama"), 1)


def test_a_rank_that_does_not_sample_computes_the_same_logits(
    model_of: Models, heads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(prompt(30, 7), 1, scored(1), chunk=8) for _ in range(2)]
    counts = []
    for job, samples in zip(jobs, (True, False), strict=True):
        driver = Driver(model_of("llama"))
        grammars = GrammarLibrary(print, VOCAB_SIZE)
        driver.runner = Runner(model_of("llama"), driver.cache, driver.versions, grammars, samples=samples)
        told = [one.token for one in jobs[0].sampled]
        monkeypatch.setattr(distributed, "of_first_rank", lambda numbers, *_, told=told: numbers or told)
        while job.done < len(job.prompt):
            driver.advance([job])
        counts.append([*heads])
        heads.clear()
    assert counts[0] == counts[1], "all ranks take part in the same collective operations"
    assert jobs[0].scores and jobs[0].sampled and not jobs[1].scores and not jobs[1].sampled

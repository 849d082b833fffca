"""Tokens of adapters through the paged cache against peft's own generate, on the same weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from baton_serve.core.protocol.steps import NewSequence, SamplingParams, Step
from baton_serve.workers.rank.loading.model import ModelShard
from baton_serve.workers.rank_protocol.errors import StepError
from tests.kits.rank.driver import GREEDY, Driver, Job, Reference, prompt
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.models import Models
from tests.kits.rank.recorders import PlainRecorder

Peft = Callable[[str, str], Reference]

#: Fused for CPUs as a whole; attention with norms, not fused; biases; windows; experts; no layers of torch's own.
ARCHITECTURES = ["llama", "qwen3", "qwen2", "mistral", "gpt2"]
NAMES = ["", "first", "second"]
LOGPROBS = SamplingParams(temperature=0.0, num_logprobs=3)


def jobs_of(model: ModelShard, lengths: list[int], num_new: int, sampling: SamplingParams = GREEDY) -> list[Job]:
    """Sequences of the model and of both adapters, in turn."""
    chunks = [5, 7, 13, 64, 1000]
    return [
        Job(prompt(n, 0), num_new, sampling, chunks[i % 5], model.adapters.names.get(NAMES[i % 3], ""))
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_several_adapters_in_one_step_equal_generate(
    architecture: str, device: str, adapted_of: Models, peft_of: Peft
) -> None:
    model = adapted_of(architecture, device)
    jobs = jobs_of(model, [1, 2, 15, 16, 17, 33, 100, 260, 30], 16)
    got = Driver(model).run(jobs)
    assert got == [peft_of(architecture, NAMES[i % 3]).generate(job.prompt, 16) for i, job in enumerate(jobs)]
    alone = [peft_of(architecture, "").generate(job.prompt, 16) for job in jobs]
    assert [ours == base for ours, base in zip(got, alone, strict=True)] == [True, False, False] * 3


def test_logprobs_are_those_of_the_adapter(adapted_of: Models, peft_of: Peft) -> None:
    model = adapted_of("llama")
    sampling = SamplingParams(temperature=0.0, num_logprobs=4)
    job = Job(prompt(40, 2), 5, sampling, adapter=model.adapters.names["first"])
    Driver(model).run([Job(prompt(9, 2), 5), job])
    for index, sampled in enumerate(job.sampled):
        expected = peft_of("llama", "first").logprobs(job.prompt + job.outputs[:index])
        values, tokens = expected.topk(4)
        assert [token for token, _ in sampled.top or ()] == tokens.tolist()
        assert [logprob for _, logprob in sampled.top or ()] == pytest.approx(values.tolist(), abs=1e-4)


def test_a_preempted_sequence_goes_on_with_its_adapter(adapted_of: Models) -> None:
    model = adapted_of("llama")
    seeded = SamplingParams(temperature=1.0, seed=11)
    quiet, disturbed = (jobs_of(model, [20, 50, 9], 24, seeded) for _ in range(2))
    expected = Driver(model).run(quiet)
    driver = Driver(model, seed=1)
    for _ in range(12):
        driver.advance(disturbed)
    for job in disturbed:
        driver.preempt(job)
    assert driver.run(disturbed) == expected


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_rows_of_the_model_keep_every_bit(architecture: str, adapted_of: Models, model_of: Models) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3, num_logprobs=5)
    alone, among = ([Job(prompt(n, 4), 12, sampling) for n in (4, 40)] for _ in range(2))
    Driver(model_of(architecture)).run(alone)
    model = adapted_of(architecture)
    others = [Job(prompt(n, 5), 14, adapter=fingerprint) for n in (7, 23) for fingerprint in model.adapters.numbers]
    Driver(model).run([others[0], among[0], others[1], others[2], among[1], others[3]])
    assert all(job.sampled for job in others)
    assert [[one.top for one in job.sampled] for job in among] == [[one.top for one in job.sampled] for job in alone]


def test_decode_steps_with_an_adapter_do_without_graphs(adapted_of: Models, peft_of: Peft) -> None:
    model = replace(adapted_of("llama"), kernel=PlainKernel())
    recorder = PlainRecorder()
    base, adapted = Job(prompt(9, 6), 12), Job(prompt(9, 6), 4, adapter=model.adapters.names["second"])
    got = Driver(model, recorder=recorder).run([base, adapted])
    assert got == [peft_of("llama", "").generate(base.prompt, 12), peft_of("llama", "second").generate(base.prompt, 4)]
    assert recorder.num_replays == 8, "the steps after the adapter's last one"


def test_a_sequence_with_an_unknown_adapter_is_refused(adapted_of: Models) -> None:
    driver = Driver(adapted_of("llama"), num_blocks=4)
    with pytest.raises(StepError, match="sequence 1 has an adapter that this rank has not loaded"):
        driver.runner.execute(Step(1, [], [], [NewSequence(1, [5], [], GREEDY, [0], adapter="f" * 32)], []))

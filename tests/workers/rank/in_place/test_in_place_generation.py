"""Tokens of attention in place, with decode graphs and without, are those of transformers' own generate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.rank.graphs.cuda_recorder import Recorder
from baton_serve.workers.rank.in_place.rows import Kernel
from baton_serve.workers.rank.loading.model import ModelShard
from tests.kits.rank.driver import Driver, Job, prompt
from tests.kits.rank.kernels import PlainKernel, triton_kernel
from tests.kits.rank.models import Models, References
from tests.kits.rank.recorders import PlainRecorder, recorder_for

#: Grouped queries; windowed and full layers in one model; no grouped queries.
ARCHITECTURES = ["llama", "qwen3_mixed", "gpt2"]


class Way:
    """A kernel, and what records decode steps, if they are recorded. None: the kernel that the model has chosen."""

    def __init__(self, kernel: Kernel | None, recorder: Recorder | None, device: str, models: Models) -> None:
        self._kernel = kernel
        self._recorder = recorder
        self._device = device
        self._models = models

    def model(self, architecture: str, dtype: str = "float32") -> ModelShard:
        model = self._models(architecture, self._device, dtype=dtype)
        return model if self._kernel is None else replace(model, kernel=self._kernel)

    def driver(self, architecture: str, dtype: str = "float32") -> Driver:
        return Driver(self.model(architecture, dtype), recorder=self._recorder, sizes=(1, 2, 4))


@pytest.fixture(params=["steps", "graphs", "own"])
def way(request: pytest.FixtureRequest, device: str, model_of: Models) -> Way:
    """The plain kernel on a CPU, the product's own on a GPU; and what a rank on a CPU has."""
    if request.param == "own":
        if device != "cpu":
            pytest.skip("the kernel of GPUs is used anyway")
        return Way(None, None, device, model_of)
    kernel = PlainKernel() if device == "cpu" else triton_kernel(132, device)
    recorder = None if request.param == "steps" else recorder_for(device)
    return Way(kernel, recorder, device, model_of)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_generate(architecture: str, way: Way, reference_of: References) -> None:
    """Prompts in chunks beside others that decode, and decode steps of one to six rows."""
    lengths = [1, 16, 17, 70]
    jobs = [Job(prompt(n, 0), 2 + i, chunk=[5, 7, 13, 64][i]) for i, n in enumerate(lengths)]
    got = way.driver(architecture).run(jobs)
    assert got == [reference_of(architecture).generate(job.prompt, job.num_new) for job in jobs]


@pytest.mark.parametrize("recorder", [None, PlainRecorder()], ids=["steps", "graphs"])
def test_the_kernel_of_gpus_in_a_whole_model(
    recorder: Recorder | None, model_of: Models, reference_of: References
) -> None:
    way = Way(triton_kernel(1, "cpu"), recorder, "cpu", model_of)
    jobs = [Job(prompt(n, 0), 3, chunk=20) for n in (3, 34)]
    got = way.driver("qwen3_mixed").run(jobs)
    assert got == [reference_of("qwen3_mixed").generate(job.prompt, job.num_new) for job in jobs]


def test_a_prefix_that_is_in_the_cache(way: Way, reference_of: References) -> None:
    prefix = prompt(48, 7)
    first = Job([*prefix, *prompt(5, 8)], 6)
    driver = way.driver("mistral")
    driver.run([first])
    second = Job([*prefix, *prompt(9, 9)], 6, blocks=first.blocks[:3], done=48)
    driver.run([second])
    assert second.outputs == reference_of("mistral").generate(second.prompt, 6)


def test_a_prompt_whose_blocks_and_first_token_are_from_elsewhere(way: Way, reference_of: References) -> None:
    """As on D: the blocks have been read from P, the first token came with the request."""
    driver = way.driver("llama")
    on_p = Job(prompt(40, 1), 1, chunk=1000)
    driver.run([on_p])
    on_d = Job(on_p.prompt, 7, outputs=list(on_p.outputs), blocks=list(on_p.blocks), done=40)
    driver.run([on_d])
    assert on_d.outputs == reference_of("llama").generate(on_p.prompt, 8)


def test_what_blocks_held_before_does_not_spoil_answers(way: Way, reference_of: References) -> None:
    driver = way.driver("llama")
    driver.cache.tensor.fill_(float("nan"))
    jobs = [Job(prompt(n, 10), 6, chunk=chunk) for n, chunk in ((1, 1), (16, 16), (30, 6), (90, 1000))]
    assert driver.run(jobs) == [reference_of("llama").generate(job.prompt, 6) for job in jobs]


def test_samples_do_not_depend_on_graphs_or_batch(way: Way, model_of: Models) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=5, num_logprobs=2)
    alone, among = (Job(prompt(60, 4), 12, params, chunk=chunk) for chunk in (1000, 9))
    Driver(model_of("qwen3")).run([alone])
    others = [Job(prompt(n, 5), 12, SamplingParams(seed=n)) for n in (1, 30, 7)]
    way.driver("qwen3").run([*others, among])
    assert among.outputs == alone.outputs
    assert len(set(alone.outputs)) > 4
    for one, other in zip(alone.sampled, among.sampled, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_as_near_as_it_can_be(dtype: str, way: Way, device: str, model_of: Models) -> None:
    """Two attentions round differently, so tokens may differ where the best two are as likely as each other."""
    params = SamplingParams(temperature=0.0, num_logprobs=2)
    ours, theirs = ([Job(prompt(n, 12), 12, params) for n in (5, 40)] for _ in range(2))
    way.driver("llama", dtype).run(ours)
    Driver(replace(model_of("llama", device, dtype=dtype), kernel=None)).run(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert_near(mine, other)


def assert_near(mine: Job, other: Job) -> None:
    for one, expected in zip(mine.sampled, other.sampled, strict=True):
        assert expected.top is not None and expected.logprob is not None
        if one.token != expected.token:
            (first, best), (second, next_best) = expected.top
            assert one.token in (first, second) and best - next_best < 0.1
            return
        assert one.logprob == pytest.approx(expected.logprob, abs=0.1)


def test_only_steps_of_single_tokens_are_graphs(device: str, model_of: Models) -> None:
    if device != "cpu":
        pytest.skip("counted on a CPU")
    recorder = PlainRecorder()
    model = replace(model_of("llama"), kernel=PlainKernel())
    driver = Driver(model, recorder=recorder, sizes=(1, 2))
    driver.run([Job(prompt(5, 1), 4, chunk=3)])
    assert recorder.num_replays == 3, "two chunks, the second of which gives the first token"
    driver.run([Job(prompt(4, 1), 3), Job(prompt(9, 1), 3)])
    assert recorder.num_replays == 5, "two of each together, and one chunk of the longer prompt before"
    driver.run([Job(prompt(4, n), 3) for n in range(3)])
    assert recorder.num_replays == 5, "no graph has three rows"
    assert recorder.num_recordings == 2, "nothing is recorded while it serves"

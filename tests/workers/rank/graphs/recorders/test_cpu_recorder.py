"""What a recorded step on a CPU calls again: torch's operations and native programs, and nothing that is not used."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.graphs import decode_graphs
from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs
from baton_serve.workers.rank.graphs.port import RecordError
from baton_serve.workers.rank.graphs.recorders.cpu_recorder import CpuRecorder
from baton_serve.workers.rank.graphs.recorders.straight_line import function_of
from baton_serve.workers.rank.graphs.recorders.tape import Tape
from baton_serve.workers.rank.graphs.setup import record_graphs
from baton_serve.workers.rank.native.support import is_available
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank.driver import Driver, Job, prompt
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.recorders import CountingRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton_serve.workers.rank.graphs.port import Replay
    from baton_serve.workers.rank.loading.model import ModelShard

needs_programs = pytest.mark.skipif(not is_available(torch.float32), reason="needs Numba")
CPU = torch.device("cpu")


def replayed(work: Callable[[torch.Tensor], torch.Tensor], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What a recording of ``work`` with ``first`` computes of ``second``."""
    given, result = first.clone(), torch.zeros_like(work(second))

    def whole() -> None:
        result.copy_(work(given))

    replay = CpuRecorder()(whole)
    assert torch.equal(result, work(first)), "the work is done while it is recorded"
    given.copy_(second)
    replay()
    return result


def of_views(numbers: torch.Tensor) -> torch.Tensor:
    """Views of what is made and of what is given, and a view that is written."""
    doubled = numbers * 2
    doubled[1:3].add_(numbers[:2].transpose(0, 1).reshape(2, 4))
    return doubled.view(2, -1)[:, 1:] + doubled[0, 0]


def of_several_results(numbers: torch.Tensor) -> torch.Tensor:
    values, places = (numbers + 1).max(dim=1)
    first, _, last = (numbers * 3).split([1, 2, 1], dim=0)
    return torch.stack([values, places.to(numbers.dtype)]).sum() + torch.cat([first, last])


def of_limits(numbers: torch.Tensor) -> torch.Tensor:
    filled = torch.full_like(numbers, float("-inf"))
    return torch.where(numbers % 4 < 3, numbers, filled).softmax(-1, dtype=torch.float64)


@pytest.mark.parametrize("work", [of_views, of_several_results, of_limits])
def test_a_replay_computes_what_the_work_does(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    first, second = torch.arange(16.0).reshape(4, 4), torch.arange(16.0).flip(0).reshape(4, 4) ** 2
    assert torch.equal(replayed(work, first, second), work(second))


@needs_programs
def test_native_programs_find_what_is_made_anew() -> None:
    from baton_serve.workers.rank.native.rows import gate, rms_norm

    weight = torch.linspace(1, 2, 4)

    def work(numbers: torch.Tensor) -> torch.Tensor:
        """A program for a part of a tensor, one for what it made, and torch for what both made."""
        both = numbers + 1
        rms_norm(torch.float32)(both[1].data_ptr(), weight.data_ptr(), both[2].data_ptr(), 1, 4, 1e-6, 1)
        gated = torch.empty(4, 2)
        gate(torch.float32)(both.data_ptr(), gated.data_ptr(), 4, 2, 1)
        return gated * 2

    first, second = torch.rand(4, 4), torch.rand(4, 4) * 7
    assert torch.equal(replayed(work, first, second), work(second))


@pytest.mark.parametrize(
    "work",
    [
        lambda numbers: numbers * numbers[0, 0].item(),
        lambda numbers: numbers * (2 if numbers.sum() > 0 else 3),
        lambda numbers: numbers[numbers > 3],
        lambda numbers: (numbers + 1).view(torch.int32) + 1,
        lambda numbers: numbers * sum(numbers[0].tolist()),
        lambda numbers: numbers * numbers.numpy()[0, 0],
        lambda numbers: torch.zeros(4, 4).set_((numbers + 1).untyped_storage(), 0, (4, 4), (4, 1)),
    ],
    ids=["item", "condition", "as many as hits", "view of another type", "list", "array", "memory"],
)
def test_what_asks_for_numbers_is_not_recorded(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(RecordError):
        replayed(work, torch.ones(4, 4), torch.ones(4, 4))


def test_what_nothing_takes_is_left_out_and_the_rest_given_back() -> None:
    numbers, tape = torch.ones(1000), Tape()
    with tape:
        numbers.mul_(numbers + 1)
        torch.stack([numbers * 3, numbers * 4]).sum()
    assert len(tape.calls) == 6
    function = function_of(tape.calls)
    function()
    assert numbers[0] == 6, "1 + 1, then 2 + 1 times that"
    assert function.__code__.co_varnames == ("t0",)
    assert len(function.__code__.co_names) == 3, "two operations, and the numbers"
    assert function.__code__.co_consts == (None, 1)


def test_a_recording_keeps_no_tensor_alive() -> None:
    """A step's tensors would be as many as all of its layers make."""
    numbers, given_back = torch.ones(100), list[bool]()
    with Tape():
        for _ in range(3):
            made = numbers * 2
            storage = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]
            numbers.copy_(made[:50].sum() + made)
            del made
            given_back.append(storage.expired())  # type: ignore[no-untyped-call]
    assert given_back == [True] * 3


@needs_programs
def test_memory_that_is_used_again_is_that_of_who_has_it_now() -> None:
    """A program is given the address of a tensor that lies where another one lay."""
    from baton_serve.workers.rank.native.rows import gate

    def work(numbers: torch.Tensor) -> torch.Tensor:
        results = []
        for factor in (1, 2, 3):
            product, gated = numbers * factor, torch.empty(4, 2)
            gate(torch.float32)(product.data_ptr(), gated.data_ptr(), 4, 2, 1)
            results.append(gated + 0)
            del product, gated
        return torch.stack(results)

    first, second = torch.rand(4, 4), torch.rand(4, 4) * 7
    assert torch.equal(replayed(work, first, second), work(second))


@needs_programs
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "qwen3_mixed", "gpt2"])
def test_steps_of_any_number_of_rows_are_recorded_once(
    architecture: str, model_of: Callable[..., ModelShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens are those of steps that are computed one operation at a time, to the last bit of a logit."""
    monkeypatch.setattr(decode_graphs, "START_S", -1)
    monkeypatch.setattr(decode_graphs, "RECORDED_AT", 4)
    model = model_of(architecture)
    recorder = CountingRecorder()

    def jobs(step: int) -> list[Job]:
        """Each ends so many steps after the one before."""
        return [Job(prompt(3 + n, n), 4 + step * n, chunk=40) for n in range(5)]

    driver = Driver(model, recorder=recorder, sizes=range(1, 5))
    assert recorder.num_recordings == 2
    assert driver.run(jobs(3)) == Driver(model).run(jobs(3))
    assert recorder.num_recordings == 2, "three and four rows came three times"
    assert driver.run(jobs(6)) == Driver(model).run(jobs(6))
    assert recorder.num_recordings == 4, "of three and four rows, the next time; five have none"
    assert driver.run(jobs(7)) == Driver(model).run(jobs(7))
    assert recorder.num_recordings == 4


@needs_programs
@pytest.mark.parametrize("max_model_len", [1, 20, 64])
def test_the_trial_fits_models_of_any_length(max_model_len: int, model_of: Callable[..., ModelShard]) -> None:
    model = replace(model_of("llama"), max_model_len=max_model_len)
    said: list[str] = []
    spec = RankSpec(model="m", engine_id="e", max_num_seqs=300)
    graphs = record_graphs(spec, model, KVCache(model.cache_shape, 1, CPU, with_spare=True), said.append)
    assert repr(graphs).startswith("[<DecodeGraphs of 1, 2, 3, 4")
    (line,) = said
    assert line.startswith("decode steps of up to 256 rows are recorded as they recur, the first ones in ")


def test_a_model_that_chooses_experts_does_without(model_of: Callable[..., ModelShard]) -> None:
    model = replace(model_of("mixtral"), kernel=PlainKernel())
    said: list[str] = []
    cache = KVCache(model.cache_shape, 4, CPU, with_spare=True)
    assert record_graphs(RankSpec(model="m", engine_id="e"), model, cache, said.append) == []
    why = "decode steps are computed without graphs, because they cannot be recorded: the result of aten"
    assert said[0].startswith(why)


def test_numbers_that_were_read_unseen_are_found_by_the_trial(model_of: Callable[..., ModelShard]) -> None:
    class Unseen(PlainKernel):
        def __call__(self, query, blocks, rows, scaling, window, out) -> None:  # type: ignore[no-untyped-def]
            end = ctypes.c_int32.from_address(rows.ends.data_ptr()).value  # torch sees nothing of this
            out.copy_(query.transpose(0, 1) * float(end))

    model = replace(model_of("llama"), kernel=Unseen())
    with pytest.raises(RecordError, match="a replay gives other logits than the step itself"):
        DecodeGraphs(model, Unseen(), KVCache(model.cache_shape, 4, CPU, with_spare=True), CpuRecorder(), (1, 2))


@needs_programs
def test_a_size_that_cannot_be_recorded_is_computed_as_it_is(
    model_of: Callable[..., ModelShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "START_S", -1)
    monkeypatch.setattr(decode_graphs, "RECORDED_AT", 2)
    model = model_of("llama")

    class OnlySmall(CpuRecorder):
        def __call__(self, work: Callable[[], None]) -> Replay:
            if self.left == 0:
                self.refused += 1
                raise RecordError("three")
            self.left -= 1
            return super().__call__(work)

        left = 2
        refused = 0

    recorder = OnlySmall()
    ours, theirs = ([Job(prompt(3 + n, n), 6, chunk=40) for n in range(3)] for _ in range(2))
    driver = Driver(model, recorder=recorder, sizes=range(1, 5))
    assert driver.run(ours) == Driver(model).run(theirs)
    assert recorder.refused == 1

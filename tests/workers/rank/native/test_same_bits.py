"""A token has the same logprobs, bit for bit, wherever it is computed: decoded, in any chunk, among others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from core.protocol.steps import SamplingParams
from tests.kits.rank.driver import Driver, Job, prompt
from workers.rank.native.support import has_tiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.rank.loading.model import ModelShard

NUM_TOKENS = 30
GREEDY = SamplingParams(temperature=0.0, num_logprobs=3)


@pytest.mark.parametrize("length", [1, 50, 200])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "qwen3_mixed"])
def test_what_goes_on_elsewhere_goes_on_with_the_same_bits(
    architecture: str, dtype: str, length: int, model_of: Callable[..., ModelShard]
) -> None:
    if not has_tiles(getattr(torch, dtype)):
        pytest.skip("this processor has no instructions for the type")
    whole = Job(prompt(length, 1), NUM_TOKENS, GREEDY)
    model = model_of(architecture, "cpu", dtype=dtype)
    Driver(model).run([whole])
    for done, chunk in ((1, 1000), (11, 9), (NUM_TOKENS - 1, 64)):
        rest = Job(whole.prompt + whole.outputs[:done], NUM_TOKENS - done, GREEDY, chunk=chunk)
        others = [Job(prompt(n, 2), NUM_TOKENS, GREEDY, chunk=5) for n in (1, 70, 7)]
        Driver(model, seed=done).run([*others, rest])
        assert [one.top for one in rest.sampled] == [one.top for one in whole.sampled[done:]]

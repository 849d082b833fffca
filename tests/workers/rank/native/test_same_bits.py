"""A token has the same logprobs, bit for bit, wherever it is computed: decoded, in any chunk, among others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.rank.native.support import has_tiles
from tests.kits.rank.driver import Driver, Job, prompt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from baton_serve.workers.rank.loading.model import ModelShard

NUM_TOKENS = 30
GREEDY = SamplingParams(temperature=0.0, num_logprobs=3)
#: Prints what a prompt and a decoded token are given, a word for each length; and so of norms, gates and rotations.
PROGRAM = """
import hashlib
import sys

import torch

from baton_serve.workers.rank.native.attention.causal import attend_in_blocks
from baton_serve.workers.rank.native.attention.decode import attend_one_token
from baton_serve.workers.rank.native.row_programs import NativeRows

dtype = getattr(torch, sys.argv[1])
torch.manual_seed(0)
for length in (1, 17, 64, 65, 100, 150, 300, 700):
    blocks = torch.randn(length // 16 + 1, 2, 2, 16, 32).to(dtype)
    table = torch.arange(len(blocks), dtype=torch.int32)
    query = torch.randn(4, length, 32).to(dtype)
    prompt, row = torch.empty(length, 4, 32, dtype=dtype), torch.empty(1, 4, 32, dtype=dtype)
    attend_in_blocks(query, blocks, table, length, 0.5, None, prompt)
    ends = torch.tensor([length], dtype=torch.int32)
    attend_one_token(query[:, -1:], blocks, table[None], ends, 0.5, None, row)
    assert torch.equal(prompt[-1], row[0]), length
    print(hashlib.sha256(prompt.float().numpy().tobytes()).hexdigest()[:16])
    inputs, weight = torch.randn(2, 2 * length).to(dtype), torch.randn(2 * length).to(dtype)
    normed, gated = torch.empty_like(inputs), torch.empty(2, length, dtype=dtype)
    NativeRows().rms_norm(inputs, weight, normed, 1e-5)
    NativeRows().gate(inputs, gated)
    NativeRows().rotate(inputs, normed, normed.clone(), 1, 2 * length)
    found = torch.cat([normed.flatten(), gated.flatten(), inputs.flatten()])
    print(hashlib.sha256(found.float().numpy().tobytes()).hexdigest()[:16])
"""


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


def test_a_seed_draws_the_same_tokens_elsewhere(model_of: Callable[..., ModelShard]) -> None:
    if not has_tiles(torch.float32):
        pytest.skip("this processor has no instructions for the type")
    drawn = SamplingParams(temperature=1.0, seed=5, num_logprobs=3)
    alone, among = (Job(prompt(40, 1), NUM_TOKENS, drawn, chunk=chunk) for chunk in (1000, 7))
    model = model_of("llama")
    Driver(model).run([alone])
    Driver(model, seed=1).run([*(Job(prompt(n, 2), NUM_TOKENS, GREEDY) for n in (1, 70, 7)), among])
    assert [(one.token, one.top) for one in among.sampled] == [(one.token, one.top) for one in alone.sampled]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_program_just_compiled_gives_the_bits_of_one_that_was_kept(dtype: str, tmp_path: Path) -> None:
    """Numba puts functions together differently then, also if one program of two was kept."""
    if not has_tiles(getattr(torch, dtype)):
        pytest.skip("this processor has no instructions for the type")
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def words() -> str:
        command = [sys.executable, "-c", PROGRAM, dtype]
        return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout

    compiled, kept = words(), words()
    assert len(compiled.split()) == 16 and kept == compiled
    gone = [path for path in tmp_path.rglob("*.nb[ci]") if path.name.startswith("one_token")]
    for path in gone:
        path.unlink()
    assert gone and words() == compiled

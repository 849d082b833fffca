"""Programs for tokens by themselves: those of GPUs and of CPUs compute what plain torch does.

Those of GPUs run under Triton's interpreter where there is none.
"""

from __future__ import annotations

import pytest
import torch

from baton_serve.workers.rank.cache import kv_cache
from baton_serve.workers.rank.cache.attention import register
from baton_serve.workers.rank.cache.kv_cache import CacheShape, KVCache
from baton_serve.workers.rank.cpu.support import CpuRows, missing
from baton_serve.workers.rank.layers.linear import is_available
from baton_serve.workers.rank.layers.modules import GatedMLP, RotaryAttention
from baton_serve.workers.rank.layers.norm import FastRMSNorm
from baton_serve.workers.rank.layers.packing import pack
from baton_serve.workers.rank.layers.row_programs import RowPrograms
from baton_serve.workers.rank.layers.trials import Inputs, is_close
from tests.kits.rank.kernels import needs_triton
from tests.kits.rank.small_llama import llama

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
#: Roundings of a type by which results may differ.
NUM_ROUNDINGS = 4


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", "triton"])
def programs(request: pytest.FixtureRequest, device: str) -> RowPrograms:
    if request.param == "cpu":
        if device != "cpu" or missing():
            pytest.skip("needs a CPU and Numba")
        return CpuRows()
    needs_triton(device)
    from baton_serve.workers.rank.gpu.launches import TritonRows

    return TritonRows()


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    """``expected`` is float32."""
    tolerance = NUM_ROUNDINGS * torch.finfo(got.dtype).eps
    assert torch.allclose(got.float(), expected, rtol=tolerance, atol=tolerance)


def draw(programs: RowPrograms, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    if not programs.takes(dtype):
        pytest.skip(f"no programs for {dtype}")
    return torch.randn(sizes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 48, 1536])
def test_rms_norm(programs: RowPrograms, size: int, dtype: torch.dtype, device: str) -> None:
    inputs, weight = (draw(programs, dtype, *sizes).to(device) for sizes in ((2, 3, size), (size,)))
    outputs = torch.full_like(inputs, torch.nan)
    programs.rms_norm(inputs, weight, outputs, 1e-5)
    check(outputs, torch.nn.functional.rms_norm(inputs.float(), (size,), weight.float(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 80])
def test_rotate(programs: RowPrograms, head_dim: int, dtype: torch.dtype, device: str) -> None:
    heads, tokens = 5, 7
    product = draw(programs, dtype, tokens, (heads + 2) * head_dim).to(device)
    cosines, sines = (draw(programs, dtype, 1, tokens, head_dim).to(device) for _ in range(2))
    parts = product.float().view(tokens, heads + 2, head_dim)
    low, high = parts.chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    expected = parts * cosines[0, :, None].float() + turned * sines[0, :, None].float()
    expected[:, heads:] = parts[:, heads:]
    programs.rotate(product, cosines, sines, heads, head_dim)
    check(product.view(tokens, heads + 2, head_dim), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1500])
def test_gate(programs: RowPrograms, size: int, dtype: torch.dtype, device: str) -> None:
    product = (draw(programs, dtype, 3, 2 * size) * 20).to(device)
    outputs = product.new_full((3, size), torch.nan)
    programs.gate(product, outputs)
    opened, other = product.float().chunk(2, dim=-1)
    check(outputs, torch.nn.functional.silu(opened) * other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 80])
def test_store_writes_keys_and_values_and_nothing_else(head_dim: int, dtype: torch.dtype, device: str) -> None:
    """Key and value are views of one product, as an attention module makes them."""
    needs_triton(device)
    from baton_serve.workers.rank.gpu.launches import store

    kv_heads, tokens, slots = 3, 5, 40
    product = torch.randn(tokens, 2 * kv_heads + 1, head_dim).to(dtype).transpose(0, 1).to(device)
    key, value = product[:kv_heads], product[kv_heads:-1]
    chosen = torch.randperm(slots)[: kv_heads * tokens].to(device)
    layer = torch.zeros(2 * slots, head_dim, dtype=dtype, device=device)
    expected = layer.clone()
    expected[chosen] = key.reshape(-1, head_dim)
    expected[chosen + slots] = value.reshape(-1, head_dim)
    store(layer, chosen, key, value, slots * head_dim)
    assert torch.equal(layer, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_of_a_model_are_replaced(programs: RowPrograms, dtype: torch.dtype, device: str) -> None:
    if not programs.takes(dtype) or not is_available(dtype, torch.device(device)):
        pytest.skip(f"no programs or no packed products for {dtype}")
    register()
    # With small weights the embedding alone would decide.
    model = llama(initializer_range=0.3).to(device, dtype)
    tokens = torch.arange(9, device=device)[None]
    asked = Inputs((), {"input_ids": tokens, "position_ids": tokens + 7, "use_cache": False})
    with torch.inference_mode():
        expected = asked.give(model)[0].logits
        pack(model, programs)
        assert {type(layer) for layer in model.modules()} >= {FastRMSNorm, GatedMLP, RotaryAttention}
        got = asked.give(model)[0].logits
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert error < 8 * torch.finfo(dtype).eps


def test_a_cache_is_written_by_the_program_as_without_it(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter the cache is on a CPU, and is told that the programs of GPUs are there."""
    needs_triton(device)
    shape = CacheShape(num_kv_heads=2, num_layers=3, block_size=4, head_dim=8, dtype=torch.float16)
    key, value = (torch.randn(2, 5, 8).to(torch.float16).to(device) for _ in range(2))
    slots = torch.tensor([[4, 5, 6, 7, 12], [28, 29, 30, 31, 36]], device=device).flatten()
    caches = []
    for why in ("", "no Triton"):
        monkeypatch.setattr(kv_cache.gpu, "missing", lambda _, why=why: why)
        caches.append(KVCache(shape, 6, torch.device(device)))
        caches[-1].write(1, slots, key, value)
    assert caches[0].tensor.any()
    assert torch.equal(caches[0].tensor, caches[1].tensor)


def test_tokens_too_large_for_their_type_show_nothing() -> None:
    own = torch.tensor([[1.0, 2.0], [torch.inf, 1.0]], dtype=torch.float16)
    assert is_close(own, own)
    assert is_close(torch.tensor([[1.0, 2.0], [torch.nan, 1.0]], dtype=torch.float16), own)
    assert not is_close(torch.tensor([[1.0, torch.nan], [torch.inf, 1.0]], dtype=torch.float16), own)
    assert not is_close(own[1:], own[1:])

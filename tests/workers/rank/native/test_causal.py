"""Causal attention by native programs: that of float64, whichever tokens and threads compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from workers.rank.native.support import has_tiles, is_available

if TYPE_CHECKING:
    from collections.abc import Callable

if not is_available(torch.float32):
    pytest.skip("needs Numba", allow_module_level=True)

from workers.rank.native.causal import attend_by_products, attend_causally
from workers.rank.native.tiled import CHUNK, MAX_TOKENS

#: Heads, heads of keys, numbers of a head, tokens, keys, window.
CASES = [
    (1, 1, 16, 1, 1, None),
    (8, 4, 32, 130, 130, None),
    (4, 2, 64, 33, 300, None),
    (3, 1, 80, MAX_TOKENS + 6, CHUNK + 70, None),
    (4, 4, 128, 65, 65, 20),
    (2, 1, 48, 5, 700, 33),
    (2, 2, 64, 300, 1000, 100),
    (2, 2, 40, 20, 50, None),
]
#: Differences from float64: weights, and sums, are rounded to the type.
MOST = {torch.float32: 4e-6, torch.bfloat16: 3e-2}


def sides(
    heads: int, kv_heads: int, head_dim: int, tokens: int, keys: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values as they lie in a product of all three."""
    generator = torch.Generator().manual_seed(heads + tokens)

    def side(count: int, length: int) -> torch.Tensor:
        wide = torch.randn(length, count + 1, head_dim, generator=generator).to(dtype)
        return wide[:, :count].transpose(0, 1)

    return side(heads, tokens), side(kv_heads, keys), side(kv_heads, keys)


def exact(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    shared = query.shape[0] // key.shape[0]
    key, value = (side.double().repeat_interleave(shared, 0) for side in (key, value))
    tokens, keys = query.shape[1], key.shape[1]
    own, other = torch.arange(keys - tokens, keys)[:, None], torch.arange(keys)[None]
    seen = (other <= own) & (other > own - (window or keys))
    scores = (query.double() @ key.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(0, 1)


def attended(
    attend: Callable[..., None],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    out = torch.full((query.shape[1], query.shape[0], query.shape[2]), float("nan"), dtype=query.dtype)
    attend(query, key, value, scale, window, out)
    return out


@pytest.mark.parametrize("attend", [attend_causally, attend_by_products])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_is_that_of_float64(
    dtype: torch.dtype, case: tuple[int, int, int, int, int, int | None], attend: Callable[..., None]
) -> None:
    *sizes, window = case
    heads, kv_heads, head_dim, tokens, keys = (size or 0 for size in sizes)
    query, key, value = sides(heads, kv_heads, head_dim, tokens, keys, dtype)
    scale = head_dim**-0.5
    found = attended(attend, query, key, value, scale, window)
    assert (found.double() - exact(query, key, value, scale, window)).abs().max() < MOST[dtype]


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_has_the_same_attention_in_any_chunk(dtype: torch.dtype, window: int | None) -> None:
    if not has_tiles(dtype):
        pytest.skip("this processor has no instructions for the type")
    keys = 2 * CHUNK + 11
    query, key, value = sides(4, 2, 32, keys, keys, dtype)
    whole = attended(attend_causally, query, key, value, 0.2, window)
    for first, end in ((0, 5), (5, 6), (6, 300), (300, 303), (303, keys)):
        seen = key[:, :end], value[:, :end]
        part = attended(attend_causally, query[:, first:end], *seen, 0.2, window)
        assert torch.equal(part, whole[first:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_two_threads_give_what_one_does(dtype: torch.dtype, kv_heads: int) -> None:
    query, key, value = sides(2 * kv_heads, kv_heads, 32, 70, 90, dtype)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(attended(attend_causally, query, key, value, 0.2, None))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)

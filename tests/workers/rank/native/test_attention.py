"""Causal attention by native programs: that of float64, whichever tokens and threads compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from baton_serve.workers.rank.native.support import has_tiles, is_available

if TYPE_CHECKING:
    from collections.abc import Callable

if not is_available(torch.float32):
    pytest.skip("needs Numba", allow_module_level=True)

from baton_serve.workers.rank.native.attention.causal import attend_by_products, attend_causally, attend_in_blocks
from baton_serve.workers.rank.native.attention.decode import attend_one_token, attend_without_tiles
from baton_serve.workers.rank.native.attention.tiled import CHUNK, MAX_TOKENS

pytestmark = pytest.mark.usefixtures("tiles")

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
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(attended(attend_causally, query, key, value, 0.2, None))
    assert torch.equal(*found)


def in_blocks(key: torch.Tensor, value: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer of a cache that has these keys and values in blocks of no order, and the row's table."""
    kv_heads, keys, head_dim = key.shape
    num = -(-keys // block_size)
    table = torch.randperm(num + 3, generator=torch.Generator().manual_seed(keys))[:num].to(torch.int32)
    # What nobody wrote may be anything.
    cache = torch.full((num + 3, kv_heads, 2, block_size, head_dim), float("nan"), dtype=key.dtype)
    for token in range(keys):
        block, slot = int(table[token // block_size]), token % block_size
        cache[block, :, 0, slot], cache[block, :, 1, slot] = key[:, token], value[:, token]
    return cache, table


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prompt_reads_the_blocks_of_the_cache(
    dtype: torch.dtype, case: tuple[int, int, int, int, int, int | None], block_size: int
) -> None:
    """What is before the window, and in slots that nobody wrote, may be anything."""
    *sizes, window = case
    heads, kv_heads, head_dim, tokens, keys = (size or 0 for size in sizes)
    query, key, value = sides(heads, kv_heads, head_dim, tokens, keys, dtype)
    wanted = attended(attend_causally, query, key, value, 0.2, window)
    unseen = max(0, keys - tokens + 1 - window) if window else 0
    key, value = key.clone(), value.clone()
    key[:, :unseen], value[:, :unseen] = float("nan"), float("nan")
    cache, table = in_blocks(key, value, block_size)
    table[: unseen // block_size] = -1
    out = torch.full_like(wanted, float("nan"))
    attend_in_blocks(query, cache, table, keys, 0.2, window, out)
    assert torch.equal(out, wanted)


#: Heads, heads of keys, numbers of a head, lengths of contexts, slots of a block, window.
ROWS = [
    (1, 1, 16, (1, 2), 16, None),
    (8, 4, 32, (130, 1, 64, 65), 16, None),
    (4, 2, 64, (301, 63), 8, None),
    (9, 1, 80, (CHUNK + 71,), 32, None),
    (4, 4, 128, (65, 700), 16, 21),
    (6, 2, 48, (5, 701, 333), 4, 33),
    (3, 1, 96, (777, 90), 7, 100),
    (2, 2, 64, (4000,), 16, None),
    (10, 2, 112, (63, 129, 1), 1, None),
    (16, 1, 256, (66,), 100, 1),
    (7, 1, 32, (64, 128, 300), 128, 64),
]


def attended_rows(
    attend: Callable[..., None],
    queries: torch.Tensor,
    contexts: list[tuple[torch.Tensor, torch.Tensor]],
    block_size: int,
    window: int | None,
) -> torch.Tensor:
    """The attention of rows of one token, each of which has a cache of its own in one large one."""
    made = [in_blocks(key, value, block_size) for key, value in contexts]
    tables = torch.full((len(made), max(len(table) for _, table in made)), -1, dtype=torch.int32)
    before = 0
    for line, (cache, table) in zip(tables, made, strict=True):
        line[: len(table)] = table + before
        before += len(cache)
    ends = torch.tensor([key.shape[1] for key, _ in contexts], dtype=torch.int32)
    out = torch.full((queries.shape[1], queries.shape[0], queries.shape[2]), float("nan"), dtype=queries.dtype)
    attend(queries, torch.cat([cache for cache, _ in made]), tables, ends, 0.2, window, out)
    return out


@pytest.mark.parametrize("case", ROWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_one_token_has_the_attention_of_a_prompt(
    dtype: torch.dtype, case: tuple[int, int, int, tuple[int, ...], int, int | None]
) -> None:
    """Bit for bit if tiles compute both."""
    heads, kv_heads, head_dim, lengths, block_size, window = case
    each = [sides(heads, kv_heads, head_dim, length, length, dtype) for length in lengths]
    queries = torch.stack([query[:, -1] for query, _, _ in each], 1)
    contexts = [(key, value) for _, key, value in each]
    prompts = [attended(attend_causally, *side, 0.2, window)[-1] for side in each]
    found, plain = (
        attended_rows(attend, queries, contexts, block_size, window)
        for attend in (attend_one_token, attend_without_tiles)
    )
    if has_tiles(dtype):
        assert torch.equal(found, torch.stack(prompts))
    for one in (found, plain):
        for row, (query, key, value) in enumerate(each):
            right = exact(query[:, -1:], key, value, 0.2, window)
            assert (one[row].double() - right[0]).abs().max() < MOST[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_share_rows_of_one_token(dtype: torch.dtype) -> None:
    each = [sides(6, 3, 32, length, length, dtype) for length in (900, 40, 500)]
    queries = torch.stack([query[:, -1] for query, _, _ in each], 1)
    contexts = [(key, value) for _, key, value in each]
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(attended_rows(attend_one_token, queries, contexts, 16, None))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])

"""The kernel of GPUs computes what the plain one does. Without a GPU it runs under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from baton_serve.workers.rank.in_place.rows import PagedRows
from baton_serve.workers.rank.in_place.splits import num_splits
from tests.kits.rank.kernels import LAYER, NUM_BLOCKS, NUM_LAYERS, PlainKernel, drawn, rows_of, triton_kernel


def compare(
    rows: PagedRows,
    *,
    dtype: torch.dtype = torch.float32,
    kv_heads: int = 2,
    shared: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
    num_processors: int = 1,
    device: str = "cpu",
) -> float:
    """The largest difference between both kernels."""
    query, blocks, expected = drawn(rows, dtype, kv_heads, shared, head_dim, block_size)
    PlainKernel()(query, blocks, rows, 0.3, window, expected)
    there = PagedRows(0, rows.num_tokens, rows.tables.to(device), rows.ends.to(device), rows.max_end)
    got = torch.full_like(expected, torch.nan, device=device)
    layer = torch.empty_strided(blocks.shape, blocks.stride(), dtype=dtype, device=device).copy_(blocks)
    triton_kernel(num_processors, device)(query.to(device), layer, there, 0.3, window, got)
    return float((got.cpu().float() - expected.float()).abs().max())


#: Of sums in float32 in another order. A key too many or too few of 900 makes 1e-3.
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("window", [None, 1, 9, 64])
@pytest.mark.parametrize(("ends", "num_tokens"), [([40, 17, 1, 130], 1), ([75], 60), ([600], 90)])
def test_both_kernels_agree(ends: list[int], num_tokens: int, window: int | None, device: str) -> None:
    assert compare(rows_of(ends, num_tokens), window=window, device=device) < TOLERANCE


@pytest.mark.parametrize(
    ("block_size", "shared", "head_dim"), [(1, 2, 16), (4, 7, 80), (32, 1, 64), (16, 3, 24), (16, 20, 128)]
)
@pytest.mark.parametrize("num_tokens", [1, 30])
def test_sizes_that_are_no_powers_of_two(
    block_size: int, shared: int, head_dim: int, num_tokens: int, device: str
) -> None:
    rows = rows_of([50], num_tokens)
    assert compare(rows, shared=shared, head_dim=head_dim, block_size=block_size, device=device) < TOLERANCE


@pytest.mark.parametrize("window", [None, 300])
def test_a_context_that_several_programs_share(window: int | None, device: str) -> None:
    # 256 processors: the row is split although there are others; a program of a short row has nothing to do.
    rows = rows_of([900, 3, 257], 1)
    assert compare(rows, window=window, num_processors=256, device=device) < TOLERANCE


@pytest.mark.parametrize("num_processors", [1, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, num_processors: int, device: str) -> None:
    if dtype is torch.bfloat16 and device == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16, not the numbers")
    for ends, num_tokens in (([600, 17, 1], 1), ([75], 60)):
        rows = rows_of(ends, num_tokens)
        assert compare(rows, dtype=dtype, num_processors=num_processors, device=device) < 2e-2


def test_what_no_token_has_written_is_not_read(device: str) -> None:
    kernel = triton_kernel(1, device)
    blocks = torch.full((NUM_BLOCKS, 2, NUM_LAYERS, 2, 16, 16), torch.nan, device=device)
    rows = rows_of([20], 1)
    first, second = rows.tables[0, :2].tolist()
    blocks[first] = 1.0
    blocks[second, :, :, :, :4] = 1.0
    out = torch.empty(1, 4, 16, device=device)
    there = PagedRows(0, 1, rows.tables.to(device), rows.ends.to(device), 20)
    kernel(torch.randn(4, 1, 16, device=device), blocks[:, :, LAYER], there, 1.0, None, out)
    assert torch.allclose(out, torch.ones_like(out))


@pytest.mark.parametrize(
    ("num_programs", "max_end", "expected"),
    [
        (8, 32768, 32),  # one sequence of long context: the whole GPU
        (8, 1024, 4),  # no program has less than 256 keys
        (8, 255, 1),
        (64, 32768, 4),
        (264, 32768, 1),  # as many programs as fit anyway
        (100_000, 32768, 1),
    ],
)
def test_so_many_programs_share_a_row(num_programs: int, max_end: int, expected: int) -> None:
    assert num_splits(num_programs, max_end, num_processors=132) == expected

"""Programs touch nothing beyond their tensors, whatever the sizes: the pages around these are closed."""

from __future__ import annotations

import ctypes
import mmap
import random
import sys

import pytest
import torch

from baton_serve.workers.rank.native.support import has_tiles, is_available

if not is_available(torch.float32) or not sys.platform.startswith("linux"):
    pytest.skip("needs Numba and Linux", allow_module_level=True)

from baton_serve.workers.rank.adapters.factors import Factors, Piece
from baton_serve.workers.rank.adapters.native_parts import NativeParts
from baton_serve.workers.rank.native.attention.causal import attend_in_blocks
from baton_serve.workers.rank.native.attention.decode import attend_one_token, attend_without_tiles
from baton_serve.workers.rank.native.cache_writes import store
from baton_serve.workers.rank.native.products import CHUNK_WORDS, product
from baton_serve.workers.rank.native.row_programs import NativeRows
from baton_serve.workers.rank.native.tiles import WIDTH
from baton_serve.workers.rank.native.weights import laid_out, takes
from baton_serve.workers.rank.native.wide_products import BLOCKS, FEW_ROWS, ROWS

NUM_CASES = 40
#: As far as a program may miss a tensor and still be seen.
CLOSED_BYTES = 32 * mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Makes tensors that begin right behind closed pages, or end right before some.

    A touch of these ends the process.
    """

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end
        self._maps: list[mmap.mmap] = []

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in such memory."""
        size = like.numel() * like.element_size()
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, room + 2 * CLOSED_BYTES)
        self._maps.append(memory)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for closed in (first, first + CLOSED_BYTES + room):
            assert _libc.mprotect(closed, CLOSED_BYTES, 0) == 0
        offset = CLOSED_BYTES + (room - size if self._at_end else 0)
        copy = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)
        return copy.copy_(like)

    def empty(self, size: int | tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        """In place of ``torch.empty``, for scratch."""
        return self.tensor(torch.full((size,) if isinstance(size, int) else size, torch.nan, dtype=dtype))


@pytest.fixture(params=[False, True], ids=["behind", "before"])
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    made = Guarded(request.param)
    for module in ("causal", "decode"):
        monkeypatch.setattr(f"baton_serve.workers.rank.native.attention.{module}.torch", _Torch(made))
    return made


class _Torch:
    """torch, but for ``empty``."""

    def __init__(self, guarded: Guarded) -> None:
        self.empty = guarded.empty

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_stays_within_its_tensors(dtype: torch.dtype, guarded: Guarded) -> None:
    draw = random.Random(7)
    for _ in range(NUM_CASES):
        kv_heads, shared = draw.choice([1, 2, 3]), draw.randint(1, 9)
        head_dim, block_size = draw.choice([16, 48, 64, 80, 112, 128]), draw.choice([1, 3, 7, 16, 64, 100])
        ends = [draw.choice([1, 2, 63, 64, 65, 129, draw.randint(1, 400), 600]) for _ in range(draw.choice([1, 3]))]
        window = draw.choice([None, None, 1, 64, draw.randint(1, 300)])
        torch.set_num_threads(draw.choice([1, 2, 3]))
        _attend_to_all(guarded, dtype, (kv_heads, shared, head_dim), block_size, ends, window)


def _attend_to_all(
    guarded: Guarded,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    block_size: int,
    ends: list[int],
    window: int | None,
) -> None:
    kv_heads, shared, head_dim = heads
    counts = [-(-end // block_size) for end in ends]
    blocks = guarded.tensor(torch.randn(sum(counts), kv_heads, 2, block_size, head_dim).to(dtype))
    wide = torch.full((len(ends), max(counts)), 2**31 - 1, dtype=torch.int32)
    for row, count in enumerate(counts):
        wide[row, :count] = torch.arange(sum(counts[:row]), sum(counts[:row]) + count)
    tables, lengths = guarded.tensor(wide), guarded.tensor(torch.tensor(ends, dtype=torch.int32))
    nothing = torch.full((len(ends), kv_heads * shared, head_dim), torch.nan, dtype=dtype)
    query = guarded.tensor(torch.randn(nothing.shape).to(dtype))
    found, plain = guarded.tensor(nothing), guarded.tensor(nothing)
    attend_one_token(query.transpose(0, 1), blocks, tables, lengths, 0.2, window, found)
    attend_without_tiles(query.transpose(0, 1), blocks, tables, lengths, 0.2, window, plain)
    assert (found - plain).abs().max() < 0.05
    for row, end in enumerate(ends):
        tokens = min(end, 1 + end % 70)
        several = guarded.tensor(query[row].expand(tokens, -1, -1))
        out = guarded.tensor(torch.full_like(several, torch.nan))
        attend_in_blocks(several.transpose(0, 1), blocks, tables[row], end, 0.2, window, out)
        assert torch.equal(out[-1], found[row]) if has_tiles(dtype) and head_dim % 16 == 0 else out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_programs_of_rows_stay_within_their_tensors(dtype: torch.dtype, guarded: Guarded) -> None:
    draw, programs = random.Random(8), NativeRows()
    for _ in range(NUM_CASES):
        tokens, size = draw.choice([1, 3, 64, 700]), 2 * draw.choice([1, 8, 31, 32, 50, 64, 100])
        heads = draw.choice([1, 3])
        torch.set_num_threads(draw.choice([1, 2, 3]))
        inputs, weight = (guarded.tensor(torch.randn(sizes).to(dtype)) for sizes in ((tokens, size), (size,)))
        normed, gated = (guarded.tensor(torch.full((tokens, each), torch.nan).to(dtype)) for each in (size, size // 2))
        programs.rms_norm(inputs, weight, normed, 1e-5)
        programs.gate(inputs, gated)
        product = guarded.tensor(torch.randn(tokens, heads * size).to(dtype))
        cosines, sines = (guarded.tensor(torch.randn(tokens, size).to(dtype)) for _ in range(2))
        programs.rotate(product, cosines, sines, heads, size)
        cache = guarded.tensor(torch.zeros(2 * tokens * heads, size, dtype=dtype))
        slots = guarded.tensor(torch.randperm(tokens * heads))
        key, value = (guarded.tensor(torch.ones(heads, tokens, size, dtype=dtype)) for _ in range(2))
        store(cache, slots, key, value, tokens * heads * size)
        assert all(bool(one.isfinite().all()) for one in (normed, gated, product)) and bool((cache == 1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_stay_within_their_tensors(dtype: torch.dtype, guarded: Guarded) -> None:
    if not takes(dtype, 2):
        pytest.skip("this processor has no instructions for the type")
    draw = random.Random(10)
    for rows in (1, 3, FEW_ROWS, FEW_ROWS + 1, 100, ROWS + 3):
        for outputs, inputs in ((1, 2), (65, 770), (WIDTH * BLOCKS + 70, 1100), (64, 384), (130, 4 * CHUNK_WORDS + 6)):
            torch.set_num_threads(draw.choice([1, 2, 3]))
            weight = laid_out(torch.randn(outputs, inputs).to(dtype))
            wide = len(weight) * WIDTH
            weight, bias = guarded.tensor(weight), guarded.tensor(torch.zeros(wide, dtype=dtype))
            given, found = (
                guarded.tensor(torch.full((rows, size), number).to(dtype))
                for size, number in ((inputs, 1.0), (outputs, torch.nan))
            )
            addresses = [one.data_ptr() for one in (given, weight, bias, found)]
            product(dtype)(*addresses, rows, inputs, outputs, torch.get_num_threads())
            assert bool(found.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_adapters_add_stays_within_its_tensors(dtype: torch.dtype, guarded: Guarded) -> None:
    if not has_tiles(dtype):
        pytest.skip("this processor has no instructions for the type")
    draw = random.Random(9)
    for _ in range(NUM_CASES):
        num_inputs, outputs = 2 * draw.choice([1, 9, 32, 50]), [draw.choice([1, 30, 64, 100]) for _ in range(3)]
        ranks, torch_threads = [draw.choice([1, 7, 16, 40, 100, 700, 1500]) for _ in range(3)], draw.choice([1, 2, 3])
        pieces = [
            Piece(sum(ranks[:i]), ranks[i], sum(outputs[:i]), outputs[i])
            for i in range(3)
            if i == 0 or draw.random() < 0.5
        ]
        down, up = torch.randn(num_inputs, sum(ranks)).to(dtype), torch.randn(sum(ranks), sum(outputs)).to(dtype)
        parts = NativeParts({1: Factors(down, up, joined=tuple(pieces))})
        laid, parts._laid = parts._laid, [guarded.tensor(one) for one in parts._laid]
        for old, new in zip(laid, parts._laid, strict=True):
            parts._table[parts._table == old.data_ptr()] = new.data_ptr()
        parts._table = guarded.tensor(parts._table)
        tokens = draw.choice([1, 4, 5, 90, 400])
        numbers = guarded.tensor(torch.tensor([draw.choice([1, 1, 1, 1, -1, 0, 2, 99]) for _ in range(tokens)]))
        inputs, product = (guarded.tensor(torch.randn(tokens, size).to(dtype)) for size in (num_inputs, sum(outputs)))
        torch.set_num_threads(torch_threads)
        parts.add(inputs, product, numbers)
        assert bool(product.isfinite().all())

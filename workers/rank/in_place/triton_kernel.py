"""The ``Kernel`` of CUDA devices: chooses sizes for Triton's programs, and starts them.

Importing this needs the package ``triton``, which comes with torch's builds for CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton

from baton_serve.workers.rank.in_place.port import TILE_NUMBERS, TOKENS_PER_TILE
from baton_serve.workers.rank.in_place.programs import attend_program, attend_ragged_program, merge_program
from baton_serve.workers.rank.in_place.splits import few_splits, num_splits

if TYPE_CHECKING:
    from baton_serve.workers.rank.in_place.port import PagedRows, RaggedRows

#: The sizes of Triton's products are no less.
MIN_SIDE = 16
#: Queries (heads times tokens) of one program where a row has several tokens, and the bytes that they may have.
PREFILL_QUERIES = 64
QUERY_BYTES = 32768
#: Bytes of the keys of one tile. With the values, and twice as many on their way, half of a processor's memory.
TILE_BYTES = 16384
MAX_TILE = 128


@dataclass(frozen=True)
class TileSizes:
    """Queries, keys and numbers of a head that one program computes at a time; all are powers of two."""

    queries: int
    keys: int
    dims: int


def tile_sizes(num_tokens: int, shared: int, head_dim: int, itemsize: int) -> TileSizes:
    """For rows of ``num_tokens`` tokens, and ``shared`` query heads for each KV head."""
    dims = max(MIN_SIDE, triton.next_power_of_2(head_dim))
    queries = max(MIN_SIDE, triton.next_power_of_2(shared))
    if num_tokens > 1:
        queries = max(queries, min(PREFILL_QUERIES, QUERY_BYTES // (dims * itemsize)))
    return TileSizes(queries, max(MIN_SIDE, min(MAX_TILE, TILE_BYTES // (dims * itemsize))), dims)


class _Call(NamedTuple):
    """What every program of a kernel needs: see ``Kernel``."""

    query: torch.Tensor
    blocks: torch.Tensor
    scaling: float
    window: int | None
    out: torch.Tensor
    sizes: TileSizes
    splits: int


class TritonKernel:
    """Attention by Triton's programs. ``num_processors``: the multiprocessors of the device."""

    def __init__(self, num_processors: int) -> None:
        self._num_processors = num_processors

    def __call__(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: PagedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        """See ``Kernel``. The last dimension of ``query`` is contiguous, and all of ``out``."""
        num_kv_heads, head_dim = blocks.shape[1], blocks.shape[4]
        shared = query.shape[0] // num_kv_heads
        sizes = tile_sizes(rows.num_tokens, shared, head_dim, blocks.element_size())
        tiles_per_row = triton.cdiv(rows.num_tokens, sizes.queries // shared)
        num_programs = len(rows.ends) * tiles_per_row * num_kv_heads
        reach = rows.max_end if window is None else min(rows.max_end, window + rows.num_tokens)
        splits = num_splits(num_programs, reach, self._num_processors)
        self._start(
            attend_program,
            len(rows.ends) * tiles_per_row,
            (rows.tables, rows.ends),
            (rows.num_tokens, tiles_per_row),
            _Call(query, blocks, scaling, window, out, sizes, splits),
        )

    def attend_ragged(
        self,
        query: torch.Tensor,
        blocks: torch.Tensor,
        rows: RaggedRows,
        scaling: float,
        window: int | None,
        out: torch.Tensor,
    ) -> None:
        """See ``RaggedKernel``, and ``__call__`` for what is contiguous."""
        shared = query.shape[0] // blocks.shape[1]
        sizes = tile_sizes(TOKENS_PER_TILE, shared, blocks.shape[4], blocks.element_size())
        programs_per_tile = triton.cdiv(TOKENS_PER_TILE, sizes.queries // shared)
        # As many tiles as there are if all are full.
        num_programs = triton.cdiv(query.shape[1], TOKENS_PER_TILE) * programs_per_tile * blocks.shape[1]
        reach = rows.max_end if window is None else min(rows.max_end, window + TOKENS_PER_TILE)
        splits = few_splits(num_splits(num_programs, reach, self._num_processors))
        self._start(
            attend_ragged_program,
            len(rows.tiles) * programs_per_tile,
            (rows.tables, rows.tiles),
            (programs_per_tile,),
            _Call(query, blocks, scaling, window, out, sizes, splits),
            TILE_NUMBERS=TILE_NUMBERS,
        )

    def _start(
        self,
        program: Any,
        num_programs: int,
        rows: tuple[torch.Tensor, torch.Tensor],
        counts: tuple[int, ...],
        call: _Call,
        **constants: int,
    ) -> None:
        """Start so many programs for each KV head and split. ``rows``, ``counts``, ``constants``: the program's own."""
        query, blocks, out = call.query, call.blocks, call.out
        num_heads, num_tokens, _ = query.shape
        num_kv_heads, head_dim = blocks.shape[1], blocks.shape[4]
        found, sums, maxima = _buffers(out, call.splits)
        split_stride = num_tokens * num_heads
        program[(num_programs, num_kv_heads, call.splits)](
            query,
            blocks,
            *rows,
            found,
            sums,
            maxima,
            call.scaling,
            call.window or 0,
            *counts,
            query.stride(0),
            query.stride(1),
            blocks.stride(0),
            blocks.stride(1),
            blocks.stride(2),
            rows[0].stride(0),
            split_stride,
            SHARED=num_heads // num_kv_heads,
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=blocks.shape[3],
            BLOCK_M=call.sizes.queries,
            BLOCK_N=call.sizes.keys,
            BLOCK_D=call.sizes.dims,
            NUM_SPLITS=call.splits,
            WINDOWED=call.window is not None,
            **constants,
            num_stages=2,
        )
        if call.splits > 1:
            merge_program[(split_stride,)](
                found,
                sums,
                maxima,
                out,
                split_stride,
                HEAD_DIM=head_dim,
                BLOCK_D=call.sizes.dims,
                NUM_SPLITS=call.splits,
            )


def _buffers(out: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the programs write values, sums and maxima; a single split writes its values to ``out``, and no others."""
    if splits == 1:
        return out, out, out
    found = torch.empty((splits, *out.shape), dtype=torch.float32, device=out.device)
    sums = torch.empty((2, splits, *out.shape[:2]), dtype=torch.float32, device=out.device)
    return found, sums[0], sums[1]

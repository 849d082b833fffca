"""The ``Kernel`` of CUDA devices: chooses sizes for Triton's programs, and starts them.

Importing this needs the package ``triton``, which comes with torch's builds for CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from baton_serve.workers.rank.in_place.programs import attend_program, merge_program
from baton_serve.workers.rank.in_place.rows import PagedRows
from baton_serve.workers.rank.in_place.splits import num_splits

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
        found, sums, maxima = _buffers(out, splits)
        num_heads, num_tokens, _ = query.shape
        split_stride = num_tokens * num_heads
        attend_program[(len(rows.ends) * tiles_per_row, num_kv_heads, splits)](
            query,
            blocks,
            rows.tables,
            rows.ends,
            found,
            sums,
            maxima,
            scaling,
            window or 0,
            rows.num_tokens,
            tiles_per_row,
            query.stride(0),
            query.stride(1),
            blocks.stride(0),
            blocks.stride(1),
            blocks.stride(2),
            rows.tables.stride(0),
            split_stride,
            SHARED=shared,
            NUM_HEADS=num_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=blocks.shape[3],
            BLOCK_M=sizes.queries,
            BLOCK_N=sizes.keys,
            BLOCK_D=sizes.dims,
            NUM_SPLITS=splits,
            WINDOWED=window is not None,
            num_stages=2,
        )
        if splits > 1:
            merge_program[(split_stride,)](
                found,
                sums,
                maxima,
                out,
                split_stride,
                HEAD_DIM=head_dim,
                BLOCK_D=sizes.dims,
                NUM_SPLITS=splits,
            )


def _buffers(out: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the programs write values, sums and maxima; a single split writes its values to ``out``, and no others."""
    if splits == 1:
        return out, out, out
    found = torch.empty((splits, *out.shape), dtype=torch.float32, device=out.device)
    sums = torch.empty((2, splits, *out.shape[:2]), dtype=torch.float32, device=out.device)
    return found, sums[0], sums[1]

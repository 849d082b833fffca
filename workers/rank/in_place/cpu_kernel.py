"""A ``Kernel`` for CPUs. Rows of one token read the blocks where they are, by a program of Numba's.

The attention of several tokens is products of torch, some queries at a time, and between them a softmax that skips what
a query does not see. In float32 that takes 0.7 to 0.8 of the time of torch's fused attention, and in bfloat16 a third,
as that one's products are not those of oneDNN (a core of Zen 5, 300 to 2,000 tokens). In bfloat16 scores are rounded
before the softmax, as in the eager attention of transformers.
"""

from __future__ import annotations

import torch

from baton_serve.workers.rank.cache.kv_cache import gathered
from baton_serve.workers.rank.cpu.support import program, seen
from baton_serve.workers.rank.in_place.rows import PagedRows

#: Queries whose scores are computed together.
BLOCK = 128
#: About the bytes of scores that are computed together. They should not leave the processor's cache.
SCORE_BYTES = 2 << 20
NO_WINDOW = 1 << 40


def attend_on_cpu(
    query: torch.Tensor, blocks: torch.Tensor, rows: PagedRows, scaling: float, window: int | None, out: torch.Tensor
) -> None:
    """Attention in place. Is a ``Kernel``; its tensors are on the CPU, and of a type that ``takes`` names."""
    if rows.num_tokens == 1:
        _attend_one_token(query, blocks, rows, scaling, window, out)
        return
    block_size = blocks.shape[3]
    for number, end in enumerate(rows.ends.tolist()):
        mine = slice(number * rows.num_tokens, (number + 1) * rows.num_tokens)
        first = max(0, end - rows.num_tokens - window + 1) // block_size if window else 0
        key, value = gathered(blocks, rows.tables[number, first : -(-end // block_size)])
        context = slice(0, end - first * block_size)  # the last block has more slots
        attend_causally(query[:, mine], key[:, context], value[:, context], scaling, window, out[mine])


def _attend_one_token(
    query: torch.Tensor, blocks: torch.Tensor, rows: PagedRows, scaling: float, window: int | None, out: torch.Tensor
) -> None:
    _, kv_heads, _, block_size, head_dim = blocks.shape
    num_slots = (blocks.untyped_storage().nbytes() // blocks.itemsize - blocks.storage_offset()) // head_dim
    slots = blocks.as_strided((num_slots, head_dim), (head_dim, 1))
    head_slots = torch.arange(kv_heads) * (blocks.stride(1) // head_dim)
    found = torch.empty(out.shape, dtype=torch.float32)
    program("attend_one_token", blocks.dtype, head_dim)(
        (query.float() * scaling).transpose(0, 1).contiguous().numpy(),
        seen(slots),
        rows.tables.numpy(),
        rows.ends.numpy(),
        head_slots.numpy(),
        blocks.stride(0) // head_dim,
        block_size,
        window or NO_WINDOW,
        found.numpy(),
    )
    out.copy_(found)


def attend_causally(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None, out: torch.Tensor
) -> None:
    """Attention of the last tokens of a context: ``query`` ``[head, token, head_dim]`` to all keys and values.

    Keys and values are ``[kv_head, token, head_dim]``, ``out`` is ``[token, head, head_dim]``.
    """
    kv_heads, num_keys, _ = key.shape
    shared, num_tokens = query.shape[0] // kv_heads, query.shape[1]
    for first in range(0, num_tokens, BLOCK):
        last = min(first + BLOCK, num_tokens)
        end = num_keys - num_tokens + last
        begin = max(0, end - (last - first) - window + 1) if window else 0
        score_bytes = shared * (last - first) * (end - begin) * key.dtype.itemsize
        together = max(1, SCORE_BYTES // score_bytes)
        for head in range(0, kv_heads, together):
            group = slice(head, min(head + together, kv_heads))
            mine = slice(group.start * shared, group.stop * shared)
            out[first:last, mine] = _attend(
                query[mine, first:last], key[group, begin:end], value[group, begin:end], scale, window
            )


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """The same for one block and some heads; returns ``[token, head, head_dim]``."""
    heads, num, head_dim = query.shape
    kv_heads, end, _ = key.shape
    scores = torch.bmm(query.reshape(kv_heads, -1, head_dim), key.transpose(1, 2))
    sums = torch.empty((kv_heads, scores.shape[1], 1), dtype=torch.float32)
    softmax = program("causal_softmax", scores.dtype)
    softmax(seen(scores.view(-1, end)), sums.view(-1).numpy(), end - num, num, window or NO_WINDOW, scale)
    return torch.bmm(scores, value).div_(sums).view(heads, num, head_dim).transpose(0, 1)

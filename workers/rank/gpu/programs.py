"""The programs that run on the GPU, in Triton's subset of Python. Only the modules beside this one import them.

Each computes in float32 and rounds once, to the type of its outputs. A program that works on a row has all of it at
hand: BLOCK is a power of two and no less than the row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_program(inputs, weight, outputs, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row of ``[row, SIZE]``, scaled to a mean square of 1 and by the weight."""
    at = tl.arange(0, BLOCK)
    mask = at < SIZE
    first = tl.program_id(0).to(tl.int64) * SIZE
    row = tl.load(inputs + first + at, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / SIZE + eps)
    scaled = row * scale * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(outputs + first + at, scaled.to(outputs.dtype.element_ty), mask=mask)


@triton.jit
def rotate_program(numbers, cosines, sines, token_stride, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """One head of one token, in place: each number of its lower half turns with that of the upper half."""
    half: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < half
    low_at = numbers + token * token_stride + tl.program_id(1) * HEAD_DIM + at
    angle = token * HEAD_DIM + at
    low = tl.load(low_at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(low_at + half, mask=mask, other=0.0).to(tl.float32)
    low_cos = tl.load(cosines + angle, mask=mask, other=0.0).to(tl.float32)
    low_sin = tl.load(sines + angle, mask=mask, other=0.0).to(tl.float32)
    high_cos = tl.load(cosines + angle + half, mask=mask, other=0.0).to(tl.float32)
    high_sin = tl.load(sines + angle + half, mask=mask, other=0.0).to(tl.float32)
    tl.store(low_at, (low * low_cos - high * low_sin).to(numbers.dtype.element_ty), mask=mask)
    tl.store(low_at + half, (high * high_cos + low * high_sin).to(numbers.dtype.element_ty), mask=mask)


@triton.jit
def gate_program(product, outputs, size, BLOCK: tl.constexpr):
    """A piece of one token of ``[token, 2 * size]``: SiLU of the first half times the second."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    token = tl.program_id(0).to(tl.int64)
    opened = tl.load(product + 2 * token * size + at, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(product + (2 * token + 1) * size + at, mask=mask, other=0.0).to(tl.float32)
    # Below -87 the exponential of the negative would be no float32; there SiLU is next to nothing anyway.
    gated = opened / (1.0 + tl.exp(-tl.maximum(opened, -87.0))) * other
    tl.store(outputs + token * size + at, gated.to(outputs.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def store_program(
    cache,
    slots,
    key,
    value,
    tokens,
    key_head,
    key_token,
    value_head,
    value_token,
    value_offset,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Key and value of one token in one KV head. ``slots`` ``[kv_head, token]`` count from the layer's first slot."""
    at = tl.arange(0, BLOCK)
    mask = at < HEAD_DIM
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    into = cache + tl.load(slots + head * tokens + token) * HEAD_DIM + at
    tl.store(into, tl.load(key + head * key_head + token * key_token + at, mask=mask), mask=mask)
    numbers = tl.load(value + head * value_head + token * value_token + at, mask=mask)
    tl.store(into + value_offset, numbers, mask=mask)

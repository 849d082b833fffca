"""Sampling noise that depends only on (seed, position, vocabulary index).

So any worker samples the same token, in any batch and row, before and after a preemption. The generator is
counter-based: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), with
the increment and the mixing constants of Vigna's public-domain splitmix64.c. There is one stream per (seed, position);
the vocabulary index is the index in the stream. Integer arithmetic wraps modulo 2^64 in torch on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
#: The largest float32 below 1.
_BELOW_ONE = 1.0 - 2.0**-24


def stream_key(seed: int, position: int) -> int:
    """The start of the stream for the token at ``position``, counted from the start of the prompt; unsigned 64 bits."""
    return _mix((_mix(seed & _MASK) + position * _GAMMA) & _MASK)


def add_gumbel(scores: torch.Tensor, keys: Sequence[int]) -> None:
    """Add the noise of ``gumbel`` to scores, float32 ``[len(keys), vocab_size]``, in place.

    On a CPU only the scores that are not -inf are touched. Where parameters or a grammar have banned most tokens of a
    large vocabulary, nearly all of the time of the noise is saved. A GPU would have to wait for their number.
    """
    if scores.is_cuda:
        scores.add_(gumbel(keys, scores.shape[1], scores.device))
        return
    rows, tokens = scores.isneginf().logical_not_().nonzero(as_tuple=True)
    bits = _mixed(_starts(keys, scores.device)[rows].add_(_increments(scores.shape[1], scores.device)[tokens]))
    scores.index_put_((rows, tokens), _gumbel(bits), accumulate=True)


def gumbel(keys: Sequence[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise, float32 ``[len(keys), vocab_size]``, with one ``stream_key`` for each row.

    The uniform number has 53 random bits, so it is precise near 0, where the noise is largest. The number is never 0
    and never 1, so the noise is finite.
    """
    return _gumbel(random_bits(keys, vocab_size, device))


def _gumbel(bits: torch.Tensor) -> torch.Tensor:
    uniform = _shift(bits, 11).to(torch.float32).add_(0.5).mul_(2.0**-53).clamp_(max=_BELOW_ONE)
    exponential = uniform.neg_().log1p_().neg_()
    return exponential.log_().neg_()


def random_bits(keys: Sequence[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """64 random bits as int64 ``[len(keys), vocab_size]``: outputs ``1..vocab_size`` of SplitMix64 from each key."""
    return _mixed(_starts(keys, device)[:, None] + _increments(vocab_size, device)[None, :])


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer, in place."""
    bits = bits.bitwise_xor_(_shift(bits, 30)).mul_(_signed(_MIX_1))
    bits = bits.bitwise_xor_(_shift(bits, 27)).mul_(_signed(_MIX_2))
    return bits.bitwise_xor_(_shift(bits, 31))


def _starts(keys: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)


@lru_cache(maxsize=8)
def _increments(vocab_size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _signed(_GAMMA)


def _shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift right; torch's operator is an arithmetic shift."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def _mix(value: int) -> int:
    """SplitMix64's finalizer on a Python integer."""
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer."""
    return value - (1 << 64) if value >= 1 << 63 else value

"""The noise: the published generator, and a Gumbel distribution."""

from __future__ import annotations

import math

import pytest
import torch

from baton_serve.workers.rank.sampling.noise import add_gumbel, gumbel, random_bits, stream_key

CPU = torch.device("cpu")


def test_bits_are_those_of_splitmix64() -> None:
    # The reference program's first five outputs for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [bits % 2**64 for bits in random_bits([1234567], 5, CPU)[0].tolist()] == expected


def test_rows_are_independent_of_each_other(device: str) -> None:
    keys = [stream_key(seed, position) for seed, position in ((0, 0), (0, 1), (1, 0), (-1, 10**6), (2**63 - 1, 3))]
    together = random_bits(keys, 100, torch.device(device)).cpu()
    alone = torch.cat([random_bits([key], 100, CPU) for key in keys])
    assert torch.equal(together, alone)
    assert len(set(together.flatten().tolist())) == 500


def test_a_longer_vocabulary_begins_with_the_same_noise() -> None:
    assert torch.equal(random_bits([7], 1000, CPU)[:, :10], random_bits([7], 10, CPU))


def test_gumbel_has_its_mean_and_spread_and_is_finite(device: str) -> None:
    noise = gumbel([stream_key(3, position) for position in range(100)], 10_000, torch.device(device))
    assert bool(noise.isfinite().all())
    # Euler's constant and pi / sqrt(6); a million draws are within a thousandth or two.
    assert abs(float(noise.double().mean()) - 0.57722) < 0.005
    assert abs(float(noise.double().std()) - math.pi / math.sqrt(6)) < 0.005


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 1.0])
def test_scores_that_are_banned_change_no_noise_of_others(kept: float) -> None:
    """Bit for bit, and a banned score stays banned."""
    keys = [stream_key(seed, position) for seed, position in ((0, 0), (5, 1), (-1, 10**6), (2**63 - 1, 3))]
    drawn = torch.Generator().manual_seed(1)
    scores = torch.randn(len(keys), 1001, generator=drawn)
    scores[torch.rand(scores.shape, generator=drawn) >= kept] = float("-inf")
    scores[0] = float("-inf")
    wanted = scores + gumbel(keys, 1001, CPU)
    add_gumbel(scores, keys)
    assert torch.equal(scores, wanted)
    assert bool(scores[0].isneginf().all()) and bool(scores[1:].isfinite().any()) == (kept > 0)

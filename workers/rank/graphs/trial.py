"""What steps with chunks of prompts have to show before they are recorded."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.workers.rank.in_place.attention import Layer, Rows

#: By how much numbers may differ, relative to the largest one. Kernels round, and sum in another order: numbers of 16
#: bits differ by less than a hundredth. Those of another token differ by as much as they are.
TOLERANCE = 0.05
#: The device is busy for longer than the host if it ends later by more than this part of the time that the host took.
LATER = 0.1


class ComparedRows:
    """``Rows`` that are computed in two ways. ``are_alike`` says whether all that was ``found`` is as ``expected``.

    Only the first ``num_tokens`` tokens are compared. The model goes on with what was found.
    """

    def __init__(self, found: Rows, expected: Rows, num_tokens: int) -> None:
        self._found = found
        self._expected = expected
        self._num_tokens = num_tokens
        self.are_alike = True

    def attend(self, layer: Layer) -> None:
        """See ``Rows``."""
        self._expected.attend(layer)
        expected = layer.out[: self._num_tokens].clone()
        layer.out.zero_()
        self._found.attend(layer)
        found = layer.out[: self._num_tokens]
        allowed = TOLERANCE * float(expected.nan_to_num().abs().max())
        self.are_alike &= bool(torch.isclose(found, expected, rtol=0, atol=allowed, equal_nan=True).all())


class StepTime(NamedTuple):
    """How long the host took to start a step, and how long after that the device took to end it, in seconds."""

    host_s: float
    device_s: float


def is_bound_by_host(times: Sequence[StepTime]) -> bool:
    """Whether the device waits for the host in such steps. One odd time of three does not matter."""
    return median(device_s / host_s for host_s, device_s in times) < LATER


def largest_worth_it(sizes: Sequence[int], tried: Mapping[int, bool]) -> int:
    """The largest of the ascending ``sizes`` that is worth a graph, by what was found for some of them.

    All below the first size that is not worth it are, as far as those that were tried reach; the smallest always is.
    """
    bad = [size for size, is_worth_it in tried.items() if not is_worth_it]
    if not bad:
        return sizes[-1]
    good = [size for size in tried if size < min(bad)]
    return max(good or [sizes[0], *[size for size in sizes if size < min(bad)]])

"""What layers need of a device, programs for each token by itself, and which there are."""

from __future__ import annotations

from typing import Protocol

import torch

from baton_serve.workers.rank.cpu import support as cpu
from baton_serve.workers.rank.gpu import support as gpu


class RowPrograms(Protocol):
    """All tensors of a call are contiguous, on one device and of one type, which ``takes`` has been asked about."""

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether there are programs for numbers of this type."""

    def rms_norm(self, inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, eps: float) -> None:
        """Scale rows ``[..., size]`` to a mean square of 1, then by ``weight`` ``[size]``."""

    def rotate(
        self, product: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, heads: int, head_dim: int
    ) -> None:
        """Rotate the first ``heads`` heads of each token of ``product`` ``[..., token, size]``, in place.

        ``cosines`` and ``sines`` are ``[..., token, head_dim]``. A number of the lower half of a head turns with the
        one at the same place of the upper half.
        """

    def gate(self, product: torch.Tensor, outputs: torch.Tensor) -> None:
        """Of ``product`` ``[..., 2 * size]``, SiLU of the first half times the second, to ``outputs``."""


def programs_for(device: torch.device) -> RowPrograms | None:
    """The programs for tensors of this device, whose compiler is imported now; None: nothing compiles them here."""
    if device.type == "cpu" and not cpu.missing():
        return cpu.CpuRows()
    if device.type == "cuda" and not gpu.missing(device):
        from baton_serve.workers.rank.gpu.launches import TritonRows

        return TritonRows()
    return None

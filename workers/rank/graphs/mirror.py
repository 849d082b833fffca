"""Tensors that never move, so that graphs can read them, and what is copied to them before each step."""

from __future__ import annotations

import torch


class Mirror:
    """A tensor on the device, and memory of the host from which its first lines are copied; on a CPU both are one."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.device = torch.zeros(sizes, dtype=dtype, device=device)
        # Memory that the GPU reads by itself, so that a copy does not wait.
        self._staged = torch.zeros(sizes, dtype=dtype, pin_memory=True) if device.type == "cuda" else self.device
        self.host = self._staged.numpy()

    def copy(self, num_lines: int) -> None:
        """Copy them. The host's memory may be changed again when the device has done its work so far."""
        if self._staged is not self.device:
            self.device[:num_lines].copy_(self._staged[:num_lines], non_blocking=True)

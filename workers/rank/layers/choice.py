"""Which programs there are for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.rank.cpu import support as cpu
from baton_serve.workers.rank.gpu import support as gpu

if TYPE_CHECKING:
    import torch

    from baton_serve.workers.rank.layers.port import RowPrograms


def programs_for(device: torch.device) -> RowPrograms | None:
    """The programs for tensors of this device, whose compiler is imported now; None: nothing compiles them here."""
    if device.type == "cpu" and not cpu.missing():
        from baton_serve.workers.rank.cpu.row_programs import CpuRows

        return CpuRows()
    if device.type == "cuda" and not gpu.missing(device):
        from baton_serve.workers.rank.gpu.row_programs import TritonRows

        return TritonRows()
    return None

"""Which programs there are for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.rank.gpu import support as gpu
from baton_serve.workers.rank.native import support as native

if TYPE_CHECKING:
    import torch

    from baton_serve.workers.rank.layers.port import RowPrograms


def programs_for(device: torch.device) -> RowPrograms | None:
    """The programs for tensors of this device, whose compiler is imported now; None: nothing compiles them here."""
    if device.type == "cpu" and not native.missing():
        from baton_serve.workers.rank.native.row_programs import NativeRows

        return NativeRows()
    if device.type == "cuda" and not gpu.missing(device):
        from baton_serve.workers.rank.gpu.row_programs import TritonRows

        return TritonRows()
    return None

"""Starts the program that copies the pieces of a block read. Importing this needs the package ``triton``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import triton

from baton_serve.workers.rank.gpu.programs import copy_program
from baton_serve.workers.transfer.mapped.port import ALIGNMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: 64-bit numbers that one program copies: four loads of 16 bytes in each of 256 threads.
NUMBERS = 2048
NUM_WARPS = 8


def copy_pieces(
    sources: NDArray[np.int64], targets: NDArray[np.int64], num_bytes: int, device: torch.device
) -> torch.Tensor:
    """Start to copy ``num_bytes`` from each source to its target on the current stream.

    All of these numbers are multiples of ``ALIGNMENT``.

    Returns what the program reads, which has to live until the copy has ended.
    """
    addresses = torch.from_numpy(np.stack((sources, targets))).to(device, non_blocking=True)
    pairs = num_bytes // ALIGNMENT
    grid = (len(sources), triton.cdiv(2 * pairs, NUMBERS))
    copy_program[grid](addresses, len(sources), pairs, BLOCK=NUMBERS, num_warps=NUM_WARPS)
    return addresses

"""The program that copies the pieces of a read. It runs under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kits.rank.kernels import needs_triton

NUM_PIECES = 9


@pytest.mark.parametrize("piece_bytes", [16, 4096, 16384, 16400, 40960])
@pytest.mark.parametrize("num_copied", [1, 5])
def test_pieces_arrive_and_nothing_else_changes(piece_bytes: int, num_copied: int, device: str) -> None:
    needs_triton(device)
    from baton_serve.workers.rank.gpu.launches import copy_pieces

    sizes = (NUM_PIECES, piece_bytes + 16)  # pieces with a gap between them
    here, there = (torch.randint(256, sizes, dtype=torch.uint8, device=device) for _ in range(2))
    sources, targets = (np.random.default_rng().permutation(NUM_PIECES)[:num_copied] for _ in range(2))
    expected = here.clone()
    expected[torch.from_numpy(targets), :piece_bytes] = there[torch.from_numpy(sources), :piece_bytes]
    addresses = (tensor.data_ptr() + ids * sizes[1] for tensor, ids in ((there, sources), (here, targets)))
    read = copy_pieces(*addresses, piece_bytes, here.device)
    assert torch.equal(here, expected)
    assert len(read) == 2

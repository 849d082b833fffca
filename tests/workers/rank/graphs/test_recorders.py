"""What every recorder does: the plain one of tests, and CUDA's."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from baton_serve.workers.rank.graphs.cuda_recorder import Recorder
from tests.kits.rank.recorders import recorder_for


@pytest.fixture
def recorder(device: str) -> Recorder:
    return recorder_for(device)


def test_a_replay_computes_with_what_is_there_then(device: str, recorder: Recorder) -> None:
    numbers, total = torch.zeros(4, device=device), torch.zeros(1, device=device)

    def work() -> None:
        total.copy_((numbers * 2).sum(0, keepdim=True))

    replay = recorder(work)
    numbers.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    replay()
    assert total.item() == 20
    numbers.fill_(1)
    replay()
    assert total.item() == 8


def test_several_recordings_do_not_disturb_each_other(device: str, recorder: Recorder) -> None:
    numbers, result = torch.arange(8.0, device=device), torch.zeros(8, device=device)

    def work(size: int) -> None:
        result[:size].copy_((numbers[:size] + 1) * size)

    replays = {size: recorder(partial(work, size)) for size in (8, 4, 2)}
    for size in (2, 8, 4, 2):
        result.zero_()
        replays[size]()
        expected = [(number + 1.0) * size if number < size else 0.0 for number in range(8)]
        assert result.tolist() == expected

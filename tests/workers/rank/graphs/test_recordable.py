"""What a graph records waits for nothing: found without a GPU, by watching every operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kits.rank.driver import Driver, Job, prompt
from tests.kits.rank.kernels import PlainKernel
from tests.kits.rank.models import Models
from tests.kits.rank.recorders import StrictRecorder, WaitedError


class QuietKernel(PlainKernel):
    """Finds nothing while a recording is watched: the product's own kernel only starts programs, this one reads."""

    def __init__(self, recorder: StrictRecorder) -> None:
        self._recorder = recorder

    def __call__(self, *arguments: Any, **named: Any) -> None:
        if not self._recorder.watches:
            super().__call__(*arguments, **named)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral", "qwen3_mixed", "gpt2", "mixtral"])
def test_steps_wait_for_nothing(architecture: str, model_of: Models) -> None:
    recorder = StrictRecorder()
    model = replace(model_of(architecture), kernel=QuietKernel(recorder))
    driver = Driver(model, recorder=recorder, sizes=(1, 2))
    driver.run([Job(prompt(3, n), 3) for n in range(2)])
    assert (recorder.num_recordings, recorder.num_replays) == (2, 2)


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.ones(1).item(),
        lambda: bool(torch.ones(1) > 0),
        lambda: torch.ones(3)[torch.ones(3) > 0],
        lambda: torch.tensor([1, 2]),
    ],
)
def test_work_that_waits_is_noticed(work: Callable[[], None]) -> None:
    with pytest.raises(WaitedError):
        StrictRecorder()(work)

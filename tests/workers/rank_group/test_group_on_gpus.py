"""Rank processes on GPUs, with decode graphs, as a worker starts them; and what they say where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.rank_protocol.errors import RankStartError
from tests.kits.rank.driver import Driver, Job, load, prompt
from tests.kits.rank.group_driver import GroupDriver, spec_of
from tests.kits.rank.models import Folders


def jobs() -> list[Job]:
    """Prompts in chunks while others decode, then steps that only decode; greedy and seeded."""
    seeded = SamplingParams(temperature=1.0, top_p=0.95, seed=7)
    return [Job(prompt(3, 20), 16), Job(prompt(70, 20), 10, chunk=13), Job(prompt(40, 21), 12, seeded, chunk=1000)]


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_graphs_give_the_tokens_of_a_cpu(num_ranks: int, folder_of: Folders) -> None:
    """Two ranks have a GPU each, and exchange data by NCCL inside their graphs."""
    if torch.cuda.device_count() < num_ranks:
        pytest.skip(f"there are not {num_ranks} CUDA devices")
    folder = folder_of("llama")
    expected = jobs()
    Driver(load(folder)).run(expected)
    driver, got = GroupDriver(num_ranks), jobs()
    group = await driver.start(replace(spec_of(folder, num_ranks, "cuda"), decode_graphs="on"))
    try:
        assert await driver.run(group, got) == [job.outputs for job in expected]
    finally:
        await group.stop()
    assert any(line.startswith("recorded decode graphs for up to 64 rows") for line in driver.progress)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"decode_graphs": "on", "attention": "gather"}, r"they need a GPU"),
        ({"attention": "in-place"}, r"the model is on cpu, and .*GPU"),
    ],
)
async def test_what_is_not_possible_here_ends_the_start(wrong: dict[str, str], reason: str, folder_of: Folders) -> None:
    driver = GroupDriver(1)
    with pytest.raises(RankStartError, match=reason):
        await driver.start(replace(spec_of(folder_of("llama"), 1), **wrong))

"""What a rank asks of its GPU: which work it waits for, and that the thread of block transfer has its context."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from baton_serve.core.protocol.steps import NewSequence, Row, Step
from baton_serve.workers.rank import main, runner
from baton_serve.workers.rank.device import use_on_this_thread, wait_for_step
from baton_serve.workers.rank_protocol.spec import RankSpec
from baton_serve.workers.transfer import rank_transfer
from baton_serve.workers.transfer.port import RankMemory
from baton_serve.workers.transfer.versions import VersionTable
from tests.kits.rank.driver import GREEDY, Driver
from tests.kits.rank.models import Models
from tests.kits.transfer.shards import ONE_RANK


def test_a_step_waits_for_its_device_after_everything_else(model_of: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, waited = Driver(model_of("llama"), num_blocks=4), list[Any]()
    monkeypatch.setattr(
        runner, "wait_for_step", lambda device: waited.append((device, driver.cache.tensor.any().item()))
    )
    driver.runner.execute(Step(1, [], [], [NewSequence(1, [5, 6], [], GREEDY, [0])], [Row(1, 0, 2, [], True)]))
    assert waited == [(torch.device("cpu"), True)]


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_work_of_others() -> None:
    device = torch.device("cuda", 0)
    other = torch.cuda.Stream(device)
    with torch.cuda.stream(other):
        torch.cuda._sleep(1 << 32)  # seconds
        pending = other.record_event()
    torch.zeros(1, device=device).add_(1)
    own = torch.cuda.current_stream(device).record_event()
    wait_for_step(device)
    assert own.query() and not pending.query()


@pytest.mark.parametrize(("memory_type", "prepares"), [("DRAM", False), ("VRAM", True)])
def test_block_transfer_of_a_gpu_begins_with_the_gpus_context(
    memory_type: str, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(rank_transfer, "RankTransfer", lambda *_, **options: given.update(options))
    metadata = msgspec.structs.replace(ONE_RANK, cache_memory_type=memory_type, cache_device_id=3)
    main._start_transfer(RankSpec(model="m", engine_id="e"), RankMemory(metadata, VersionTable(1)), print)
    prepare = given["on_thread_start"]
    assert (prepare is not None) == prepares
    if prepares:
        assert (prepare.func, prepare.args) == (use_on_this_thread, (3,))

"""GPU memory of another process: mapped, copied, and refused where it is not what it says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import torch

from baton_serve.core.protocol.handshake import SharedMemory
from tests.kits.owner import first_line, owner_of
from tests.kits.patience import PATIENCE_S

if TYPE_CHECKING:  # it imports Triton
    from baton_serve.workers.rank.gpu.mapped_memory import GpuMemory

pytestmark = pytest.mark.gpu
NUM_PIECES, PIECE_BYTES = 300, 48 * 1024
ALL_BYTES = NUM_PIECES * PIECE_BYTES


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with owner_of("-m", "tests.kits.rank.gpu_owner", str(NUM_PIECES), str(PIECE_BYTES)) as process:
        yield process


@pytest.fixture
def shared(owner: subprocess.Popen[str]) -> SharedMemory:
    return msgspec.msgpack.decode(bytes.fromhex(first_line(owner)), type=SharedMemory)


@pytest.fixture(scope="module")
def memory() -> GpuMemory:
    pytest.importorskip("triton")
    from baton_serve.workers.rank.device import use_on_this_thread
    from baton_serve.workers.rank.gpu.mapped_memory import GpuMemory

    use_on_this_thread(0)
    return GpuMemory(torch.device("cuda", 0))


def copy_all(memory: GpuMemory, address: int) -> torch.Tensor:
    """All pieces in another order, as they arrive."""
    order = np.random.default_rng().permutation(NUM_PIECES)
    target = torch.zeros((NUM_PIECES, PIECE_BYTES), dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    has_ended = memory.copy(address + order * PIECE_BYTES, target.data_ptr() + order * PIECE_BYTES, PIECE_BYTES)
    deadline = time.monotonic() + PATIENCE_S
    while not has_ended():
        assert time.monotonic() < deadline
    return target.cpu()


def test_memory_of_another_process_is_copied_to_the_byte(memory: GpuMemory, shared: SharedMemory) -> None:
    from tests.kits.rank.gpu_owner import pieces

    for _ in range(3):
        address = memory.map(shared, ALL_BYTES)
        again = memory.map(shared, ALL_BYTES)
        assert address is not None
        assert again is not None
        memory.unmap(again)
        assert torch.equal(copy_all(memory, address), pieces(NUM_PIECES, PIECE_BYTES))
        memory.unmap(address)


def test_what_is_not_there_is_not_mapped(memory: GpuMemory, shared: SharedMemory) -> None:
    from tests.kits.rank.gpu_owner import pieces

    changes: list[dict[str, object]] = [
        {"boot_id": "another machine"},
        {"gpu": "another GPU"},
        {"handle": b"short"},
        {"handle": bytes(64)},
        {"offset": -16},
        {"offset": 8},
        {"offset": 2**62},
        {"offset": 2**70},
    ]
    for change in changes:
        assert memory.map(msgspec.structs.replace(shared, **change), ALL_BYTES) is None, change
    assert memory.map(shared, 2**40) is None
    ours = torch.zeros(2**22, dtype=torch.uint8, device="cuda:0")
    own = memory.share(ours.data_ptr())
    assert own is not None
    assert memory.map(own, 16) is None, "memory of this process"
    # The GPU is none the worse for it.
    address = memory.map(shared, ALL_BYTES)
    assert address is not None
    assert torch.equal(copy_all(memory, address), pieces(NUM_PIECES, PIECE_BYTES))
    memory.unmap(address)


def test_the_death_of_the_owner_does_no_harm(
    memory: GpuMemory, owner: subprocess.Popen[str], shared: SharedMemory
) -> None:
    """What is read then is of no use, as the versions cannot be read; but this process goes on."""
    address = memory.map(shared, ALL_BYTES)
    assert address is not None
    owner.kill()
    owner.wait()
    copy_all(memory, address)
    memory.unmap(address)
    assert torch.ones(1000, device="cuda:0").sum().item() == 1000

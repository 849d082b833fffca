"""Memory of the host in shared files: mapped by another process, copied, refused if it is not what it is said to be."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from baton_serve.core.protocol.handshake import SharedMemory
from baton_serve.workers.transfer.mapped import host_memory
from baton_serve.workers.transfer.mapped.host_memory import FEW_PIECES, HostMemory
from baton_serve.workers.transfer.mapped.shared_file import (
    HUGE_PAGE_BYTES,
    Mapping,
    OtherFile,
    SharedFile,
    SharedFileError,
)
from tests.kits.owner import first_line, owner_of

NUM_PIECES, PIECE_BYTES = 40, 4096 + 512  # more than FEW_PIECES
NUM_BYTES = NUM_PIECES * PIECE_BYTES
OWNER = f"""
import ctypes, sys
import numpy as np
from baton_serve.workers.transfer.mapped.shared_file import SharedFile
shared = SharedFile({NUM_BYTES})
content = (np.arange({NUM_BYTES}) % 251).astype(np.uint8)
ctypes.memmove(shared.address, content.ctypes.data, {NUM_BYTES})
print(shared.handle.decode(), flush=True)
sys.stdin.read()
"""


def content() -> np.ndarray:
    return (np.arange(NUM_BYTES) % 251).astype(np.uint8).reshape(NUM_PIECES, PIECE_BYTES)


def needs_files() -> None:
    try:
        SharedFile(1).close()
    except (OSError, AttributeError) as error:
        pytest.skip(f"no memory that others can map: {error}")


@pytest.fixture(autouse=True)
def _files() -> None:
    needs_files()


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with owner_of("-c", OWNER) as process:
        yield process


@pytest.fixture
def shared(owner: subprocess.Popen[str]) -> SharedMemory:
    return msgspec.structs.replace(here(), handle=first_line(owner).encode())


def here() -> SharedMemory:
    """A file of this process."""
    found = HostMemory(SharedFile(NUM_BYTES)).share(0)
    assert found is not None
    return found


@pytest.mark.parametrize("order", ["as they are", "scattered", "apart", "few"])
@pytest.mark.parametrize("part", [PIECE_BYTES, 512])
def test_memory_of_another_process_is_copied_to_the_byte(order: str, part: int, shared: SharedMemory) -> None:
    memory = HostMemory(None)
    address = memory.map(shared, NUM_BYTES)
    assert address is not None
    target = np.zeros((NUM_PIECES, PIECE_BYTES), dtype=np.uint8)
    random = np.random.default_rng(5)
    sources, targets = np.arange(NUM_PIECES), np.arange(NUM_PIECES)
    if order == "scattered":
        sources = random.permutation(NUM_PIECES)
    elif order != "as they are":
        num = FEW_PIECES if order == "few" else FEW_PIECES + 10
        sources, targets = random.permutation(NUM_PIECES)[:num], random.permutation(NUM_PIECES)[:num]
    at = target.ctypes.data
    assert not memory.should_unmap(address, 60)
    assert memory.copy(address + sources * PIECE_BYTES, at + targets * PIECE_BYTES, part)()
    expected = np.zeros_like(target)
    expected[targets, :part] = content()[sources, :part]
    assert np.array_equal(target, expected)
    memory.unmap(address)


def test_nothing_is_a_copy_too() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert HostMemory(None).copy(nothing, nothing, 4096)()


def test_what_its_owner_writes_later_is_seen_and_its_death_takes_nothing(
    owner: subprocess.Popen[str], shared: SharedMemory
) -> None:
    memory = HostMemory(None)
    address = memory.map(shared, NUM_BYTES)
    assert address is not None
    assert not memory.should_unmap(address, 60)
    owner.kill()
    owner.wait()
    assert memory.should_unmap(address, 60)
    assert not memory.should_unmap(address, 0), "not looked at while it is read"
    target = np.zeros((NUM_PIECES, PIECE_BYTES), dtype=np.uint8)
    offsets = np.arange(NUM_PIECES) * PIECE_BYTES
    memory.copy(address + offsets, target.ctypes.data + offsets, PIECE_BYTES)
    assert np.array_equal(target, content())
    memory.unmap(address)
    assert memory.map(shared, NUM_BYTES) is None


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another machine"},
        {"gpu": "a GPU"},
        {"offset": -4096},
        {"offset": 2**21},
        {"offset": 2**70},
        {"handle": b""},
        {"handle": b"1 0 /etc/passwd"},
        {"handle": b"1 0 baton-" + b"0" * 32},
        {"handle": b"9" * 10 + b" 3 baton-" + b"0" * 32},
        {"handle": b"\xff 3 baton-" + b"0" * 32},
    ],
)
def test_what_is_not_there_is_not_mapped(change: dict[str, object], shared: SharedMemory) -> None:
    assert HostMemory(None).map(msgspec.structs.replace(shared, **change), NUM_BYTES) is None


def test_a_file_may_not_become_smaller_and_has_to_be_the_one_that_it_is_said_to_be() -> None:
    shared = SharedFile(8192)
    process, number, name = shared.handle.split()
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(int(number), 4096)
    other = OtherFile(shared.handle, 8192)
    ctypes.memset(shared.address + 8191, 7, 1)
    assert ctypes.string_at(other.address + 8190, 2) == b"\0\7"
    other.close()
    with pytest.raises(SharedFileError, match="is another file"):
        OtherFile(b"%b %b baton-%b" % (process, number, b"0" * 32), 1)
    unsealed = os.memfd_create(name.decode())
    os.ftruncate(unsealed, 8192)
    with pytest.raises(SharedFileError, match="smaller"):
        OtherFile(b"%b %d %b" % (process, unsealed, name), 1)
    os.close(unsealed)
    shared.close()


def test_what_a_file_does_not_have_in_memory_is_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look up a hole would take memory."""
    shared = SharedFile(8192)
    with pytest.raises(SharedFileError, match=f"it has {HUGE_PAGE_BYTES} bytes"):
        OtherFile(shared.handle, HUGE_PAGE_BYTES + 1)
    monkeypatch.setattr(Mapping, "use_huge_pages", lambda _: None)
    hole = SharedFile(8192)
    with pytest.raises(SharedFileError, match="0 of them in memory"):
        OtherFile(hole.handle, 4096)
    shared.close()
    hole.close()


def test_a_machine_that_hides_its_boot_maps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = here()
    monkeypatch.setattr(host_memory, "_BOOT_ID", tmp_path / "hidden")
    memory = HostMemory(SharedFile(NUM_BYTES))
    assert memory.share(0) is None
    assert memory.map(msgspec.structs.replace(shared, boot_id=""), NUM_BYTES) is None


def test_a_huge_page_that_cannot_be_had_now_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    advise = Mapping._advise

    def refused(mapping: Mapping, advice: int) -> None:
        asked.append(advice)
        if len(asked) < 3:
            raise OSError(errno.EAGAIN, "not now")
        advise(mapping, advice)

    monkeypatch.setattr(Mapping, "_advise", refused)
    SharedFile(1).close()
    assert len(asked) == 3


def test_it_has_huge_pages_for_its_owner_and_for_readers() -> None:
    shared = SharedFile(3 * HUGE_PAGE_BYTES + 1)
    other = OtherFile(shared.handle, 4 * HUGE_PAGE_BYTES)
    for address in (shared.address, other.address):
        assert address % HUGE_PAGE_BYTES == 0
        assert mapped_in_huge_pages(address) == 4 * HUGE_PAGE_BYTES
    other.close()
    shared.close()


def mapped_in_huge_pages(address: int) -> int:
    """Bytes of the mapping that begins at an address which the process has in huge pages."""
    *_, mapping = Path("/proc/self/smaps").read_text().partition(f"\n{address:x}-")
    return int(mapping.split("ShmemPmdMapped:")[1].split()[0]) * 1024


def test_memory_that_the_machine_does_not_have_is_an_error_at_once() -> None:
    with pytest.raises(MemoryError, match="more than this machine has"):
        SharedFile(1 << 60)


def test_without_huge_pages_there_is_no_file_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Mapping) -> None:
        raise OSError("Invalid argument")

    monkeypatch.setattr(Mapping, "use_huge_pages", refused)
    before = held()
    with pytest.raises(OSError, match="Invalid"):
        SharedFile(8192)
    assert held() == before


def held() -> tuple[int, int]:
    """Descriptors of this process, and mappings of shared files."""
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("memfd:baton")

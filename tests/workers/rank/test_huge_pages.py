"""Memory in huge pages."""

from __future__ import annotations

import errno
import mmap
import os
import re
from pathlib import Path

import pytest
import torch

from baton_serve.workers.rank.cache.kv_cache import HUGE_PAGE_BYTES, CacheShape, KVCache, zeros_in_huge_pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("num_bytes", [1, 4096, 3 * HUGE_PAGE_BYTES + 5])
def test_zeros_begin_a_huge_page_and_can_be_written(num_bytes: int) -> None:
    memory = zeros_in_huge_pages(num_bytes)
    assert memory.numel() == num_bytes and memory.data_ptr() % HUGE_PAGE_BYTES == 0
    assert not memory.any()
    memory.fill_(7)
    assert memory[-1] == 7


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    assert not zeros_in_huge_pages(5000).any()


def test_a_cache_on_a_cpu_is_in_huge_pages() -> None:
    if not ENABLED.exists() or "[never]" in ENABLED.read_text():
        pytest.skip("this system has no huge pages")
    shape = CacheShape(num_kv_heads=2, num_layers=2, block_size=16, head_dim=64, dtype=torch.float32)
    cache = KVCache(shape, 16 * HUGE_PAGE_BYTES // shape.block_bytes, torch.device("cpu"))
    assert huge_kib_at(cache.address) >= 8 * HUGE_PAGE_BYTES >> 10  # the kernel gives what it has


def huge_kib_at(address: int) -> int:
    """KiB in huge pages of the mapping that has this address."""
    has_address = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            has_address = int(found[1], 16) <= address < int(found[2], 16)
        elif has_address and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("there is no such mapping")


@pytest.mark.parametrize("num_bytes", [os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE + 1, 1 << 70])
def test_more_than_the_machine_has_is_an_error_at_once(num_bytes: int) -> None:
    """Whatever the system promises: it would end the process when the memory is written."""
    with pytest.raises(RuntimeError, match="more than this machine has"):
        zeros_in_huge_pages(num_bytes)

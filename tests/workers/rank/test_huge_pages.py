"""Memory in huge pages."""

from __future__ import annotations

import errno
import mmap

import pytest

from baton_serve.workers.rank.cache.kv_cache import HUGE_PAGE_BYTES, zeros_in_huge_pages


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


def test_more_than_there_is_is_an_error_of_torchs_kind() -> None:
    with pytest.raises(RuntimeError, match="no memory for"):
        zeros_in_huge_pages(1 << 60)

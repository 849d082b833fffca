"""What is read from the page of a vLLM server."""

from __future__ import annotations

import contextlib
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.vllm.servers.load import MAX_LINE_BYTES, MAX_PAGE_BYTES, read_load
from tests.kits.router.stub_vllm import Numbers


def test_the_numbers_of_one_engine_are_read() -> None:
    numbers = Numbers(running=[3], waiting=[2], deferred=[1], usage=[0.25], num_blocks=1000, block_size=128)
    load = read_load(numbers.page().encode())
    assert (load.running, load.waiting, load.reading, load.full_at) == (3, 2, 1, 4)
    assert (load.num_blocks, load.num_used_blocks, load.block_size, load.num_engines) == (1000, 250, 128, 1)
    assert load.has_nixl
    assert load.started_s == numbers.started_s
    worker_load = load.as_worker_load()
    assert (worker_load.free_blocks, worker_load.pinned_blocks) == (750, 250)


def test_engines_of_one_server_are_added_up() -> None:
    numbers = Numbers(running=[3, 1], waiting=[0, 0], deferred=[1, 2], usage=[0.5, 0.0], num_blocks=100)
    load = read_load(numbers.page().encode())
    assert (load.running, load.waiting, load.reading, load.num_engines) == (4, 0, 3, 2)
    assert (load.num_blocks, load.num_used_blocks) == (200, 50)
    assert load.full_at is None


def test_a_server_without_the_connector_has_no_counts_of_it() -> None:
    load = read_load(Numbers(has_nixl=False).page().encode())
    assert (load.has_nixl, load.num_expired, load.num_late_notifications) == (False, 0, 0)


def test_the_counts_of_the_connector_are_read() -> None:
    load = read_load(Numbers(expired=4, late=2).page().encode())
    assert (load.num_expired, load.num_late_notifications) == (4, 2)


def test_the_waiting_requests_of_a_server_that_names_no_reasons_are_read() -> None:
    page = "".join(line for line in Numbers(waiting=[2]).page().splitlines(True) if "by_reason" not in line)
    assert read_load(page.encode()).waiting == 2


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>",
        "vllm:num_requests_running",
        'vllm:num_requests_running{engine="0"} 1',  # it may be cut off
        'vllm:num_requests_running{engine="0"} many\n',
        'vllm:num_requests_running{engine="0"} NaN\n',
        'vllm:num_requests_running{engine="0"} +Inf\n',
        "vllm:num_requests_running{engine 1\n",
        "up 1\n",
    ],
)
def test_a_page_that_is_not_vllms_metrics_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|no vllm|/metrics|to float"):
        read_load(page.encode())


@given(st.text(), st.integers(0, 400))
def test_any_other_text_is_refused_or_read(noise: str, cut: int) -> None:
    page = Numbers().page()
    lines = page.splitlines()
    lines[cut % len(lines)] = lines[cut % len(lines)][: cut % 60] + noise
    try:
        load = read_load("\n".join(lines).encode(errors="replace"))
    except ValueError:
        return
    assert load.running >= 0


RUNNING = b'vllm:num_requests_running{engine="0"} 1\n'
#: What took much of a general parser for each line, each as large as what is read of a page.
COSTLY = {
    "short lines": b"\n" * MAX_PAGE_BYTES,
    "lines of other metrics": b"a 1\n" * (MAX_PAGE_BYTES // 4),
    "the same line again and again": RUNNING * (MAX_PAGE_BYTES // len(RUNNING)),
    "almost the name": b"\nvllm:num_requests_running" * (MAX_PAGE_BYTES // 26),
}


@pytest.mark.parametrize("page", COSTLY.values(), ids=COSTLY)
def test_few_lines_of_a_page_are_looked_at(page: bytes) -> None:
    steps = []
    sys.settrace(lambda *_: lambda *_: steps.append(1))
    try:
        with contextlib.suppress(ValueError):
            read_load(page)
    finally:
        sys.settrace(None)
    assert len(steps) < 25_000


#: Labels that are repeated, and what comes before and behind them in their line.
LONG = {
    "one word": (b"", b"a", b""),
    "words": (b"", b"aaaa ", b""),
    "a value without end": (b'a="', b"a", b""),
    "escapes": (b'a="', b"\\\\", b'"'),
    "escapes without end": (b'a="', b"\\\\", b""),
    "escaped quotes without end": (b'a="', b'\\"', b""),
    "names behind escaped quotes": (b'a="', b'\\"a=', b""),
    "names without values": (b"", b"a=", b""),
    "values without names": (b"", b'="",', b""),
}


def _cpu_s(page: bytes) -> float:
    """The least CPU time of three readings."""
    took = []
    for _ in range(3):
        began = time.process_time()
        with contextlib.suppress(ValueError):
            read_load(page)
        took.append(time.process_time() - began)
    return min(took)


@pytest.mark.parametrize(("before", "repeated", "behind"), LONG.values(), ids=LONG)
def test_a_line_takes_time_by_its_length(before: bytes, repeated: bytes, behind: bytes) -> None:
    """Of lines of four times the length, as long as they are read, quadratic work takes sixteen times as long."""

    def page(line_bytes: int) -> bytes:
        labels = before + repeated * ((line_bytes - 100) // len(repeated)) + behind
        return b"vllm:num_requests_running{%b} 1\n" % labels * (MAX_PAGE_BYTES // MAX_LINE_BYTES)

    assert _cpu_s(page(MAX_LINE_BYTES)) < 8 * _cpu_s(page(MAX_LINE_BYTES // 4)) + 0.01


def test_labels_of_all_lines_together_are_bounded() -> None:
    line = b"vllm:num_requests_running{%b} 1\n" % (b'a="b",' * 2700)
    assert read_load(line).running == 1
    with pytest.raises(ValueError, match="/metrics has too many"):
        read_load(line * 16)


@pytest.mark.parametrize("number", ["-1", "1e308", "9" * 300, "9007199254740992"])
@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"])
def test_a_number_that_cannot_be_is_refused(name: str, number: str) -> None:
    page = f'vllm:{name}{{engine="0"}} {number}\n' + Numbers(num_blocks=100_000).page()
    with pytest.raises(ValueError, match="not understood"):
        read_load(page.encode())


def test_no_more_of_the_cache_is_used_than_there_is() -> None:
    load = read_load(Numbers(usage=[7.5], num_blocks=100).page().encode())
    assert (load.num_blocks, load.num_used_blocks) == (100, 100)


def test_numbers_missing_from_a_page_that_is_cut_are_not_known() -> None:
    page = Numbers(running=[3], has_nixl=False).page().encode()
    load = read_load(page[: page.find(b"vllm:cache_config_info")], is_cut=True)
    assert (load.running, load.num_blocks, load.block_size, load.is_cut) == (3, 0, 0, True)
    assert load.has_nixl, "nobody says that it has none"

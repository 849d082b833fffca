"""What is made of the samples of block reads."""

from __future__ import annotations

import pytest

from bench.block_reads.__main__ import case_of
from bench.block_reads.findings import Case, Findings, Sample, intercept
from bench.block_reads.pages import REFUSED, report
from bench.block_reads.reader import repeats

MIB = 2**20


def sample(num_blocks: int, us_a_block: float = 10.0, fixed_us: float = 100.0) -> Sample:
    copy_s = num_blocks * us_a_block * 1e-6
    return Sample(num_blocks, copy_s, 2 * copy_s + fixed_us * 1e-6, copy_s + fixed_us * 1e-6, copy_s)


def findings(tls: str, kib: int, *, can_read: bool = True) -> Findings:
    case = Case(tls, kib * 1024, [1, 4, 16, 256], 2, 512 * MIB)
    return Findings(case, can_read, [[sample(count, fixed_us=fixed) for count in case.counts] for fixed in (90, 110)])


def test_fixed_cost_is_that_of_no_bytes() -> None:
    assert findings("", 16).fixed_us("fenced_s") == pytest.approx([90, 110])
    assert findings("", 16).fixed_us("thread_s") == pytest.approx([0, 0], abs=1e-6)


def test_a_line_needs_two_points() -> None:
    assert intercept([(1.0, 3.0), (2.0, 4.0)]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="two points"):
        intercept([(1.0, 3.0)])


def test_ratios_are_of_speeds() -> None:
    found = findings("", 16)
    assert found.ratios("fenced_s") == pytest.approx([2560 / 2 / 2605, 2560 / 2 / 2615])
    assert found.ratios("unfenced_s") == pytest.approx([2560 / 2650, 2560 / 2670])


def test_reads_stay_within_memory() -> None:
    assert case_of("", MIB, 5, 512 * MIB).counts == [1, 4, 16, 64, 256]
    assert case_of("", 16 * 1024, 5, 512 * MIB).counts[-1] == 256
    assert case_of("", MIB, 5, 8 * MIB).counts == [1, 4]


def test_small_reads_are_repeated_and_large_ones_are_not() -> None:
    case = case_of("", MIB, 5, 512 * MIB)
    assert [repeats(count, case) for count in case.counts] == [21, 8, 2, 1, 1]


def test_report_has_every_transport_and_size() -> None:
    found = {"shared memory": [findings("", 16), findings("", 64)], "TCP": [findings("tcp", 16), findings("tcp", 64)]}
    done = report(found, 2)
    assert [len(table.rows) for table in done.tables] == [2, 2, 2]
    assert [plot.name for plot in done.plots] == ["block-reads-sizes"]
    assert [line.x for line in done.plots[0].lines] == [[16, 64]] * 4
    assert REFUSED not in done.about


def test_report_says_when_the_kernel_refuses_shared_memory() -> None:
    assert REFUSED in report({"shared memory": [findings("", 16, can_read=False)]}, 2).about

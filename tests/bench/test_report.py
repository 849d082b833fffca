"""What benchmarks hand to `make bench`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.report.model import Line, Plot, Report, Table, read_report
from bench.report.spread import number, spread


def test_report_survives_its_file(tmp_path: Path) -> None:
    report = Report(
        title="Block reads",
        command="python -m bench.block_reads",
        about=["What it is."],
        tables=[Table("Reads", ["KiB", "GB/s"], [["64", "3.1"]])],
        plots=[Plot("reads", "Reads", "KiB", "GB/s", [Line("shared memory", [64.0], [3.1])], log_x=True)],
    )
    report.write(tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == report


def test_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"title": "Block reads"}')
    with pytest.raises(msgspec.ValidationError):
        read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.4, "1234"), (56.78, "56.8"), (0.1234, "0.123"), (0.00456, "0.00456"), (-3.14159, "-3.14")],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_spread_is_median_min_and_max() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert spread([5.0]) == "5.00"
    assert spread([]) == "-"

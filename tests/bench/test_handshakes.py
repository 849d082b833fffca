"""The report of handshakes, from made-up results, and what the command takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.handshakes.__main__ import parser
from bench.handshakes.rounds import Result, Runs
from bench.handshakes.tables import report
from bench.report.model import read_report

if TYPE_CHECKING:
    from pathlib import Path


def result(factor: float) -> Result:
    """A run with a median first token of 20 ms, a slowest one of 60 ms, and a gap of 40 ms, times the factor."""
    return Result([10.0 * factor, 20.0 * factor, 60.0 * factor], [5.0, 6.0, 7.0], 40.0 * factor, 20.0)


def test_the_options_have_defaults_for_five_runs(tmp_path: Path) -> None:
    given = parser().parse_args([])
    assert (given.runs, given.report) == (5, None)
    given = parser().parse_args(["--runs", "7", "--report", str(tmp_path / "a.json")])
    assert (given.runs, given.report) == (7, tmp_path / "a.json")


def test_a_report_has_the_spread_of_the_times_and_both_kinds_of_ratio(tmp_path: Path) -> None:
    runs = Runs([result(1.0), result(1.0), result(2.0)], [result(3.0), result(1.0), result(4.0)])
    report(runs, 32).write(tmp_path / "report.json")
    times, ratios = read_report(tmp_path / "report.json").tables
    assert times.rows[0] == [
        "all well",
        "20.0 (20.0 to 40.0)",
        "60.0 (60.0 to 120)",
        "6.00 (6.00 to 6.00)",
        "40.0 (40.0 to 80.0)",
        "20.0 (20.0 to 20.0)",
    ]
    assert times.rows[1][1] == "60.0 (20.0 to 80.0)"
    assert [row[1:] for row in ratios.rows] == [
        ["3.00", "2.00 (1.00 to 3.00)"],
        ["3.00", "2.00 (1.00 to 3.00)"],
        ["2.00", "2.00 (2.00 to 4.00)"],
        ["6.00", "6.00 (2.00 to 8.00)"],
    ]
    assert {len(row) for row in times.rows} == {len(times.columns)}

"""What the measurement of policies asks, and how it shows what it found."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from bench.policies.__main__ import parser
from bench.policies.rounds import PAIRS, PolicyResult
from bench.policies.tables import report
from bench.policies.workload import conversations
from bench.report.model import read_report

if TYPE_CHECKING:
    from pathlib import Path


def test_a_workload_differs_only_in_how_its_prompts_begin() -> None:
    one, other = (conversations(3, salt, 20.0, 2.0) for salt in ("a", "b"))
    assert one == conversations(3, "a", 20.0, 2.0)
    assert [(c.begin_s, c.turns, c.system[1:]) for c in one] == [(c.begin_s, c.turns, c.system[1:]) for c in other]
    assert {c.system[0] for c in one} == {"a"}
    assert len({c.system for c in one}) < len(one) / 2, "beginnings are shared"


def test_conversations_come_in_bursts() -> None:
    begins_s = [c.begin_s for c in conversations(1, "", 200.0, 2.0)]
    in_bursts = sum(begin_s % 10 < 2 for begin_s in begins_s)
    assert 0.35 < in_bursts / len(begins_s) < 0.65, "a fifth of the time"


def test_a_row_shows_the_spread_and_every_failure() -> None:
    rows = [PolicyResult(100.0, p99, 0.5, 0.25, 3.0, failed) for p99, failed in ((900.0, 0), (200.0, 1), (300.0, 1))]
    (table,) = report({("prefix", "affinity"): rows}, parser().parse_args(["--runs", "3", "--seed", "4"])).tables
    assert table.title.endswith("seeds 4 to 6")
    assert table.rows == [
        [
            "prefix",
            "affinity",
            "100 (100 to 100)",
            "300 (200 to 900)",
            "50.0 (50.0 to 50.0)",
            "25.0 (25.0 to 25.0)",
            "3.00 (3.00 to 3.00)",
            "2",
        ]
    ]


def test_runs_that_failed_are_counted_and_have_no_times() -> None:
    well, failed = PolicyResult(100.0, 200.0, 0.5, 0.5, 3.0, 0), PolicyResult(nan, nan, nan, nan, 0.0, 9)
    rows = {("a", "a"): [failed], ("b", "b"): [failed, well]}
    found = report(rows, parser().parse_args([]))
    assert found.tables[0].rows[0] == ["a", "a", "-", "-", "-", "-", "0", "9"]
    assert found.tables[0].rows[1][2] == "100"
    assert [(line.x, line.y) for line in found.plots[0].lines] == [([2.0], [100.0]), ([2.0], [200.0])]


def test_the_report_of_the_default_runs_has_each_pair(tmp_path: Path) -> None:
    given = parser().parse_args(["--report", str(tmp_path / "report.json")])
    assert given.runs >= 5
    report({pair: [PolicyResult(1.0, 2.0, 0.5, 0.5, 3.0, 0)] * given.runs for pair in PAIRS}, given).write(given.report)
    found = read_report(given.report)
    assert [tuple(row[:2]) for row in found.tables[0].rows] == PAIRS
    assert {len(row) for row in found.tables[0].rows} == {len(found.tables[0].columns)}
    assert len(found.plots[0].lines[0].x) == len(PAIRS)

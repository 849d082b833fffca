"""The whole of it, with a few short runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.model import read_report
from bench.scale import __main__ as command
from bench.scale.costs import Costs
from bench.scale.load.load import generated
from bench.scale.questions import choice, routers
from bench.scale.runs import Setting


@pytest.fixture
def setting() -> Setting:
    return Setting(generated(), Costs(), seeds=[1])


def test_it_writes_a_report_with_a_table_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    arguments = ["--only", "choice", "--runs", "2", "--workers", "6", "--shorten", "0.1", "--report", str(file)]
    monkeypatch.setattr("sys.argv", ["bench.scale", *arguments])
    assert command.main() == 0
    report = read_report(file)
    assert [len(table.rows) for table in report.tables] == [2 * len(choice.SHARES)]
    assert [len(line.low) for line in report.plots[0].lines] == [len(choice.SHARES)] * 2
    assert "Seeds: 1, 2." in capsys.readouterr().out


def test_a_trace_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.scale", "--trace", str(tmp_path / "none")])
    assert command.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_routers_are_needed_for_tokens_and_for_knowing_many_workers(setting: Setting) -> None:
    rows = {row[0]: row[3] for row in routers.needed(setting).rows}
    assert int(rows["50"]) < int(rows["100"]) < int(rows["1000"]) / 10
    assert rows["4000"] == "no number is enough"

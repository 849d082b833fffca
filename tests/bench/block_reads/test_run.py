"""The whole benchmark, with few and small pieces."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.block_reads import __main__ as command
from bench.report.model import read_report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_two_processes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TRANSPORTS", {"shared memory": ""})
    flags = ["--runs", "1", "--piece-kib", "16", "--source-mib", "1", "--report", str(tmp_path / "report.json")]
    monkeypatch.setattr(sys, "argv", ["bench.block_reads", *flags])
    command.main()
    speeds, fixed = read_report(tmp_path / "report.json").tables
    assert speeds.rows[0][:2] == ["16", "64"]
    assert float(speeds.rows[0][2]) > 0
    assert fixed.rows[0][0] == "shared memory"

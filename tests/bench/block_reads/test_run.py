"""The whole benchmark, with few and small pieces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.block_reads import __main__ as command
from bench.block_reads.findings import GPU, HOST
from bench.report.command import LACKING
from bench.report.model import read_report


@pytest.mark.slow
def test_two_processes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--runs", "1", "--piece-kib", "16", "--source-mib", "1", "--report", str(tmp_path / "report.json")]
    monkeypatch.setattr(sys, "argv", ["bench.block_reads", *flags])
    command.main()
    *speeds, fixed = read_report(tmp_path / "report.json").tables
    assert len(speeds) == 2
    for table in speeds:
        assert table.rows[0][:2] == ["16", "64"]
        assert float(table.rows[0][2]) > 0
    assert [row[0] for row in fixed.rows] == list(command.WAYS[HOST])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.block_reads", "--memory", GPU])
    assert command.main() == LACKING
    assert capsys.readouterr().out == "there is no CUDA device here\n"


@pytest.mark.gpu
def test_two_processes_on_a_gpu_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--memory", GPU, "--runs", "1", "--piece-kib", "16", "--source-mib", "1"]
    monkeypatch.setattr(sys, "argv", ["bench.block_reads", *flags, "--report", str(tmp_path / "report.json")])
    command.main()
    speeds, _ = read_report(tmp_path / "report.json").tables
    assert float(speeds.rows[0][2]) > 0

"""The page of all benchmarks: what was measured is on it, and what was not is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.performance.benchmarks import Benchmark
from bench.performance.command import write_page
from bench.performance.page import anchor, page
from bench.performance.runs import Outcome, RunRecord
from bench.report.model import Line, Plot, Report, Table

READS = Report(
    title="Block reads, one P",
    command="python -m bench.block_reads",
    about=["What it is."],
    tables=[Table("Reads", ["KiB", "GB/s"], [["64", "3.1 | 2"]])],
    plots=[Plot("reads", "Reads", "KiB", "GB/s", [Line("shared memory", [16, 64.0], [1, 3.1], [1, 3], [1, 4])])],
)
DONE = Outcome(Benchmark("block_reads", "reads"), READS, RunRecord("2026-11-23 20:15 UTC", "two cores", "abc", 61.0))
FAILED = Outcome(Benchmark("engine", "steps"), None, RunRecord("", "", "", 1.0, "it ended with status 1: `no vLLM`"))
LACKING = Outcome(Benchmark("gpu", "on GPUs"), None, RunRecord("", "", "", 1.0, lacks="there is no GPU here"))
MISSING = Outcome(Benchmark("held", "leases"), None, None)


def test_page_has_what_was_measured_and_names_what_was_not() -> None:
    text = page([DONE, FAILED, LACKING, MISSING])
    assert "- on GPUs: not measured, there is no GPU here (`bench.gpu`)" in text
    assert "- steps: no result, `bench.engine`: `it ended with status 1: 'no vLLM'`" in text
    assert "- leases: no result, `bench.held`: `it has not been run`" in text
    assert "Machine: two cores." in text
    for part in ("What it is.", "    python -m bench.block_reads", "Measured 2026-11-23 20:15 UTC at abc, in 61 s."):
        assert part in text
    assert "| KiB | GB/s |\n| --- | ---: |\n| 64 | 3.1 \\| 2 |" in text
    assert "![Reads](performance/reads.svg)" in text


def test_contents_lead_to_headings() -> None:
    text = page([DONE])
    (link,) = re.findall(r"\(#(.+?)\)", text)
    assert link == "block-reads-one-p"
    assert link in [anchor(heading) for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)]


def test_same_report_makes_the_same_files_and_old_plots_go(tmp_path: Path) -> None:
    plots = tmp_path / "performance"
    plots.mkdir()
    (plots / "old.svg").write_text("")
    contents = []
    for _ in range(2):
        write_page([DONE], tmp_path / "performance.md")
        contents.append((plots / "reads.svg").read_bytes())
    assert [path.name for path in plots.iterdir()] == ["reads.svg"]
    assert contents[0] == contents[1]
    assert b"shared memory" not in contents[0], "one line needs no legend"
    assert b"GB/s" in contents[0]


@pytest.mark.parametrize("name", ["reads", "../reads", ""])
def test_name_of_a_plot_is_a_name_and_its_own(name: str, tmp_path: Path) -> None:
    other = Report("Other", "", [], plots=[Plot(name, "", "", "", [])])
    with pytest.raises(ValueError, match="is the name of another plot, or none"):
        write_page([DONE, Outcome(Benchmark("other", ""), other, None)], tmp_path / "performance.md")

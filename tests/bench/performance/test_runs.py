"""Running one benchmark: whatever it does, an outcome is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.performance.benchmarks import Benchmark
from bench.performance.runs import outcome, run

REPORT = '{"title": "T", "command": "c", "about": []}'


class Program(Benchmark):
    """A benchmark that is one of the modules below."""

    @property
    def module(self) -> str:
        return f"tests.bench.performance.{self.name}"


@pytest.mark.parametrize(
    ("does", "failure"),
    [
        ("well", ""),
        ("fail", "it ended with status 3: no vLLM here"),
        ("nothing", "it wrote no report"),
        ("nonsense", "its report is none: "),
        ("hang", "it was ended after 1 s"),
    ],
)
def test_a_run_leaves_a_report_or_a_failure(
    does: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_DOES", does)
    (tmp_path / "program.json").write_text(REPORT)  # of an earlier run
    done = run(Program("program", "", timeout_s=1.0 if does == "hang" else 60.0), tmp_path, 7)
    assert done == outcome(Program("program", "", done.benchmark.timeout_s), tmp_path)
    assert done.record is not None
    if failure:
        assert done.report is None
        assert done.failure.startswith(failure)
    else:
        assert done.report is not None
        assert done.report.about == ["7 runs", "no vLLM"]


@pytest.mark.parametrize(("takes_vllm", "told"), [(True, "folder"), (False, "no vLLM")])
def test_only_what_compares_with_vllm_is_told_where_it_is(
    takes_vllm: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_DOES", "well")
    done = run(Program("program", "", takes_vllm=takes_vllm), tmp_path, None, "folder")
    assert done.report is not None
    assert done.report.about[1] == told


def test_what_a_machine_lacks_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHMARK_DOES", "lack")
    done = run(Program("program", ""), tmp_path, None)
    assert (done.report, done.lacks) == (None, "there is no third hand here")
    assert done.record is not None
    assert done.record.failure == ""


def test_what_another_machine_measured_stays_where_this_one_lacks_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("program", "")
    monkeypatch.setenv("BENCHMARK_DOES", "well")
    before = run(program, tmp_path, None)
    monkeypatch.setenv("BENCHMARK_DOES", "lack")
    assert run(program, tmp_path, None).lacks == "there is no third hand here"
    assert outcome(program, tmp_path) == before
    assert before.report is not None


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    nothing = outcome(Benchmark("held", ""), tmp_path)
    assert (nothing.report, nothing.failure) == (None, "it has not been run")


def test_a_report_made_by_hand_counts(tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text(REPORT)
    by_hand = outcome(Benchmark("held", ""), tmp_path)
    assert by_hand.report is not None
    assert by_hand.record is None

"""Runs one benchmark, and keeps what came of it: its report, its log, and a record of the run."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.performance.benchmarks import Benchmark
from bench.performance.machine import ROOT, commit, machine, now
from bench.processes import start, stop
from bench.report.command import LACKING
from bench.report.model import Report, read_report

STOP_TIMEOUT_S = 20.0
#: Longest part of a log's last line that is shown.
MAX_LINE = 200


class RunRecord(msgspec.Struct, frozen=True):
    """When and on what a benchmark ran. ``failure`` is one line, and empty if all went well.

    ``lacks`` is what the machine does not have that the benchmark needs, one line; then it has neither failed nor run.
    """

    when: str
    machine: str
    commit: str
    seconds: float
    failure: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Outcome:
    """What is known of a benchmark: a report, or why there is none. A report made by hand has no record."""

    benchmark: Benchmark
    report: Report | None
    record: RunRecord | None

    @property
    def lacks(self) -> str:
        """What the machine of the last run did not have, one line; empty if that was no reason."""
        return self.record.lacks if self.record is not None else ""

    @property
    def failure(self) -> str:
        """Why there is no report, one line."""
        if self.record is not None and self.record.failure:
            return self.record.failure
        return "it has not been run"


def run(benchmark: Benchmark, folder: Path, num_runs: int | None = None, vllm: str | None = None) -> Outcome:
    """Run a benchmark in a process of its own; with ``num_runs`` instead of its own number of runs.

    ``vllm``: the environment of a vLLM, for benchmarks that compare with one; None: what they find on PATH. Where this
    machine lacks what the benchmark needs, what was measured on another one stays.
    """
    kept, report = folder / f"{benchmark.name}.json", folder / f"{benchmark.name}.new.json"
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", benchmark.module, "--report", str(report)]
    argv += [] if num_runs is None else ["--runs", str(num_runs)]
    argv += ["--vllm", vllm] if benchmark.takes_vllm and vllm is not None else []
    began_s = time.monotonic()
    log = folder / f"{benchmark.name}.log"
    status = _run(argv, log, benchmark.timeout_s)
    lacks = last_line(log) if status == LACKING else ""
    failure = "" if lacks else _failure(status, log, benchmark.timeout_s, report)
    record = RunRecord(now(), machine(), commit(), time.monotonic() - began_s, failure, lacks)
    if lacks and kept.exists():
        return Outcome(benchmark, None, record)
    kept.unlink(missing_ok=True)
    if report.exists() and not failure:
        report.rename(kept)
    report.unlink(missing_ok=True)
    _record_path(benchmark, folder).write_bytes(msgspec.json.encode(record))
    return outcome(benchmark, folder)


def outcome(benchmark: Benchmark, folder: Path) -> Outcome:
    """What the last run of a benchmark left. Raises ``msgspec.ValidationError`` for a file that is no report."""
    report, record = folder / f"{benchmark.name}.json", _record_path(benchmark, folder)
    return Outcome(
        benchmark,
        read_report(report) if report.exists() else None,
        msgspec.json.decode(record.read_bytes(), type=RunRecord) if record.exists() else None,
    )


def _record_path(benchmark: Benchmark, folder: Path) -> Path:
    return folder / f"{benchmark.name}.run.json"


def _run(argv: list[str], log: Path, timeout_s: float) -> int | None:
    """Run a program to its end; returns its exit status, or None if it was ended."""
    log.unlink(missing_ok=True)
    process = start(argv, log, folder=ROOT)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        stop(process, STOP_TIMEOUT_S)


def _failure(status: int | None, log: Path, timeout_s: float, report: Path) -> str:
    """What went wrong in one line, or an empty string."""
    if status is None:
        return f"it was ended after {timeout_s:.0f} s"
    if status:
        return f"it ended with status {status}: {last_line(log)}"
    try:
        read_report(report)
    except FileNotFoundError:
        return "it wrote no report"
    except msgspec.MsgspecError as error:
        return f"its report is none: {error}"
    return ""


def last_line(log: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:MAX_LINE] if lines else "it said nothing"

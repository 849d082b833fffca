"""``baton torture`` from its command line to its plan, and when its verdict counts. What it does is in tests/faults."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from rich.console import Console

from baton_serve.baton.cli import main
from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.torture.clients.reference import NoReferenceError, agreed
from baton_serve.baton.torture.command import torture
from baton_serve.baton.torture.records import Attempt, ClientAnswer, Fault, Question
from baton_serve.baton.torture.report import MAX_LINES, MAX_TOLD, command, print_report
from baton_serve.baton.torture.run import RunOutcome, RunPlan
from baton_serve.baton.torture.shape import Shape
from baton_serve.baton.torture.verdict.settle import what_stays
from baton_serve.baton.torture.verdict.validate import Judgement, Verdict


@pytest.mark.parametrize(
    "plan",
    [
        RunPlan(3, kills=200),
        RunPlan(0, seconds=90),
        RunPlan(0, seconds=90, kills=20),
        RunPlan(7, kills=10, shape=Shape(2, 2, 2, prefill_tp=2, decode_tp=2)),
        RunPlan(7, kills=10, shape=Shape(1, 4, 3, prefill_tp=2), num_clients=5),
        RunPlan(7, kills=10, shape=Shape(decode_tp=4)),
    ],
)
def test_the_command_that_repeats_a_run_is_understood(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[RunPlan] = []

    def take(plan: RunPlan, report: Path | None) -> int:
        assert report is None
        given.append(plan)
        return 0

    monkeypatch.setattr("baton_serve.baton.torture.command.torture", take)
    baton, *words = command(RunOutcome(plan)).split()
    assert baton == "baton" and main(words) == 0
    assert given == [plan]


def test_codes_of_both_engines_are_counted() -> None:
    """vLLM's are numbers."""
    outcome = RunOutcome(RunPlan(3, kills=1))
    for code in ("worker_died", 500, "worker_died"):
        attempt = Attempt(0, "router-0", True, 0.0, error={"code": code})
        outcome.judged.append((attempt, Judgement(Verdict.ALLOWED, "a worker died")))
    console = Console(file=io.StringIO(), width=160)
    print_report(outcome, console, Path())
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert re.search(r"500: a worker died +1\b", shown) and re.search(r"worker_died: a worker died +2\b", shown)


@pytest.mark.parametrize(
    ("verdict", "began_s", "tested"),
    [
        (Verdict.EXACT, 1.0, True),
        (Verdict.EXACT, 3.0, False),
        (Verdict.LEFT, 1.0, False),
        (Verdict.ROUTER_DIED, 1.0, False),
    ],
)
def test_a_storm_without_exact_answers_after_a_fault_proves_nothing(
    verdict: Verdict, began_s: float, tested: bool
) -> None:
    attempt = Attempt(0, "router-0", True, 0.0, ended_s=2.0)
    fault = Fault("kill", "decode", "decode-0", began_s)
    outcome = RunOutcome(RunPlan(1), [(attempt, Judgement(verdict))], [fault])
    assert outcome.good and outcome.tested is tested


def test_questions_with_two_answers_are_left_out_but_not_many_of_them() -> None:
    questions = [Question(number, False, {}) for number in range(4)]
    alone = [ClientAnswer(text) for text in "abcd"]
    assert agreed(questions, [alone, [ClientAnswer(text) for text in "abxd"]]) == {
        0: alone[0],
        1: alone[1],
        3: alone[3],
    }
    with pytest.raises(NoReferenceError, match="2 of 4"):
        agreed(questions, [alone, [ClientAnswer(text) for text in "abxd"], [ClientAnswer(text) for text in "axcd"]])


def test_tells_what_nothing_would_ever_remove_from_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("baton:router:ab", "x", ex=60)
        assert what_stays(redis_url) == ""
        client.zadd("baton:{ab}:leases", {"cd": 1})
        assert what_stays(redis_url) == "1 keys that never expire: baton:{ab}:leases"
        client.expire("baton:{ab}:leases", 60)
        assert what_stays(redis_url, ["ef"]) == ""
        assert what_stays(redis_url, ["ab", "ef"]) == "leases by engine: {'ab': 1}"


def test_a_report_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["torture", "--report", str(tmp_path / "no folder" / "report.txt")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("baton: cannot write ") and err.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_storm_tells_what_there_is(
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended: list[Cluster] = []

    async def run(outcome: RunOutcome, cluster: Cluster, tell: Callable[[str], None]) -> None:
        outcome.faults.append(Fault("kill", "decode", "decode-1", outcome.began_s + 2.5))
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(cluster)

    monkeypatch.setattr("baton_serve.baton.torture.command.run", run)
    report = tmp_path / "report.txt"
    assert torture(RunPlan(3, kills=7, shape=Shape(2, 2, 2, prefill_tp=2, decode_tp=2)), report) == status
    (cluster,) = ended
    assert not cluster.folder.exists()
    told = report.read_text()
    assert told.startswith(
        "baton torture --kills 7 --seed 3 --prefill 2 --decode 2 --routers 2 --prefill-tp 2 --decode-tp 2\n"
    )
    assert f"Interrupted by {number.name}" in told
    assert "2.500 s  kill decode-1, not undone" in told
    assert "not looked at" in told and "Interrupted" in capsys.readouterr().out


STUBBORN = """
import asyncio, sys
from baton_serve.baton.torture import command
from baton_serve.baton.torture.run import RunPlan
async def run(outcome, cluster, tell):
    cluster.redis.start()
    tell(str(cluster.folder))
    tell(cluster.redis.url.removeprefix("unix://").partition("/redis.sock")[0])
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
command.run = run
sys.exit(command.torture(RunPlan(1), None))
"""


def test_a_second_interrupt_ends_it_at_once_and_leaves_nothing_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folders = [Path(process.stdout.readline().strip()) for _ in range(2)]
        assert all(folder.is_dir() for folder in folders)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().startswith("SIGINT: ")
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130 and not any(folder.exists() for folder in folders)


def test_logs_stay_and_are_named_only_when_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Path] = []

    async def run(outcome: RunOutcome, cluster: Cluster, tell: Callable[[str], None]) -> None:
        outcome.surprises += ["decode-0: was ended by SIGSEGV"] * len(folders)
        folders.append(cluster.folder)

    monkeypatch.setattr("baton_serve.baton.torture.command.run", run)
    assert [torture(RunPlan(3), None) for _ in range(2)] == [0, 1]
    assert [folder.exists() for folder in folders] == [False, True]
    told = capsys.readouterr().out
    assert str(folders[0]) not in told and f"Logs: {folders[1]}" in told
    shutil.rmtree(folders[1])


def test_the_report_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "router-0.log").write_text("request ab12\n" * (MAX_LINES + 3))
    outcome = RunOutcome(RunPlan(1))
    lost = Attempt(0, "router-0", True, 1.0, 2.0, "ab12")
    outcome.judged = [(lost, Judgement(Verdict.WRONG, "lost"))] * (MAX_TOLD + 2)
    text = io.StringIO()
    print_report(outcome, Console(file=text, width=160), tmp_path)
    assert text.getvalue().count("ab12 of question 0") == MAX_TOLD
    assert "2 more wrong answers" in text.getvalue() and "... and 3 lines more" in text.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        {"surprises": ["while it started: decode-1: ended with exit code 1"]},
        {"held": {"decode-1": "sequences: {'waiting': 1}"}},
        {"grown": {"decode-1/0": "Resources(...)"}},
    ],
)
def test_the_report_tells_the_story_of_a_process_that_something_is_wrong_with(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("decode-1", "decode-10", "decode-2"):
        (tmp_path / f"{name}.log").write_text(f"first of {name}\n" + f"last of {name}\n" * MAX_LINES)
    faults = [Fault("kill", "decode", name, 1.0) for name in ("decode-1", "decode-2")]
    outcome = RunOutcome(RunPlan(1, shape=Shape(decode=11)), faults=faults, **wrong)
    text = io.StringIO()
    print_report(outcome, Console(file=text, width=160), tmp_path)
    told = text.getvalue()
    assert told.count("last of decode-1\n") == MAX_LINES and "first of" not in told
    assert "kill decode-1," in told and "decode-10" not in told and "decode-2" not in told

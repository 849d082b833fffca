"""What runs come to: comparisons within each run, goals, tables and the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from bench.report.spread import spread
from bench.router.harness.sample import LoadResult, Sample
from bench.router.result.goals import GOALS
from bench.router.result.numbers import best, compared, values
from bench.router.result.report import report
from bench.router.result.tables import flows, ratios
from bench.router.rounds import Found
from bench.router.workloads import WORKLOADS

if TYPE_CHECKING:
    from bench.router.result.numbers import Runs


def sample(router: str, workload: str, router_cpu_s: float = 1.0, floor_ms: float = 0.0, **load: Any) -> Sample:
    """A window of two seconds with 1,000 requests."""
    numbers = {
        "seconds": 2.0,
        "started": 1000,
        "answered": 1000,
        "failed": 0,
        "tokens": 0,
        "events": 0,
        "chunks": 0,
        "ttft_p50_us": 1000.0,
        "ttft_p99_us": 3000.0,
        "itl_p99_us": 0.0,
        "unfinished": 0,
        **load,
    }
    result = LoadResult(**numbers)
    return Sample(router, workload, result, router_cpu_s, 0.5, 60.0, (1.0, 1.0, 0.0, 0.0), floor_ms)


def run(*samples: Sample) -> dict[tuple[str, str], Sample]:
    """One run."""
    return {(one.router, one.workload): one for one in samples}


A = next(goal for goal in GOALS if goal.workload == "A")
RUNS = [
    run(sample("baton", "A", 0.2), sample("vllm-router", "A", 0.4), sample("sglang-router", "A", 0.9)),
    run(sample("baton", "A", 0.3), sample("vllm-router", "A", 0.4), sample("sglang-router", "A", 0.3)),
    run(sample("baton", "A", 0.1), sample("vllm-router", "A", 0.5)),
]


def test_cpu_time_is_per_answer_and_per_token() -> None:
    one = sample("baton", "B", 0.5, answered=100, tokens=12_500, events=13_000, chunks=6_500)
    assert (one.cpu_us_per_request, one.cpu_us_per_token, one.tokens_per_chunk) == (5000, 40, 2)
    none = sample("baton", "B", 0.5, answered=0)
    assert all(map(math.isnan, (none.cpu_us_per_request, none.cpu_us_per_token, none.tokens_per_chunk)))


def test_added_time_is_without_the_engines_part() -> None:
    engines_ms = WORKLOADS["O"].floor_ms(has_prefill=True), WORKLOADS["O"].floor_ms(has_prefill=False)
    assert engines_ms == (15, 10)
    one = sample("baton", "O", floor_ms=engines_ms[0], ttft_p50_us=16_000.0, ttft_p99_us=18_500.0)
    assert (one.added_p50_ms, one.added_p99_ms) == (1, 3.5)


def test_routers_are_compared_within_a_run() -> None:
    def of(one: Sample) -> float:
        return one.cpu_us_per_request

    assert values(RUNS, "sglang-router", "A", of) == [900, 300]
    assert compared(RUNS, "baton", "vllm-router", "A", of, lambda ours, theirs: theirs - ours) == [200, 100, 400]
    assert best(RUNS, ("sglang-router", "vllm-router", "nginx"), "A", of) == "vllm-router"
    assert best(RUNS, ("nginx",), "A", of) is None


def test_a_goal_is_reached_by_the_median_of_the_ratios() -> None:
    assert A.row(RUNS, "baton") == [
        "A: CPU per request",
        "baton",
        "vllm-router",
        spread([0.5, 0.75, 0.2]),
        A.goal,
        "yes",
    ]
    assert A.row(RUNS[1:2], "baton")[-1] == "no"


@pytest.mark.parametrize("runs", [[run(sample("baton", "A"))], [run(sample("vllm-router", "A"))]])
def test_a_goal_without_one_of_the_two_is_neither_reached_nor_missed(runs: Runs) -> None:
    assert A.row(runs, "baton")[-1] == "-"


def test_a_window_without_an_answer_is_an_empty_cell() -> None:
    made = report(Found([run(sample("baton", "A", answered=0))]), ["baton"], ["baton"], None)
    assert "CPU time, us" not in [table.title for table in made.tables]


def test_failures_of_all_windows_are_added() -> None:
    runs = [run(sample("baton", "A", failed=2)), run(sample("baton", "A", unfinished=1))]
    assert flows(runs, ["baton", "nginx"]).rows == [["baton", "1.00", "1.00", "0", "0", "3", "60.0"]]


def test_what_is_no_other_is_beside_them_as_baton_is() -> None:
    runs = [{**one, **run(sample("before", "A", 0.1))} for one in RUNS]
    found = ratios(runs, ["baton", "vllm-router", "before"])
    assert [row[0] for row in found.rows] == ["A: us per request, baton", "A: us per request, before"]
    assert found.rows[1][1] == f"{spread([0.25, 0.25, 0.2])} vllm-router"


def test_the_report_names_what_was_not_measured() -> None:
    scaling = Found([run(sample("one process", "A"), sample("two processes", "A"))])
    found = Found(RUNS, {"nginx": "there is none"})
    made = report(found, ["baton"], ["baton", "nginx", "sglang-router", "vllm-router"], scaling)
    assert "Not measured: nginx (there is none)." in made.about
    assert all(len(row) == len(table.columns) for table in made.tables for row in table.rows)
    assert made.tables[-1].columns == ["", "one process", "two processes"]

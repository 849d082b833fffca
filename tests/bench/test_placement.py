"""The placement simulation says the same twice, and loses no request."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES
from baton_serve.router.pool import Worker
from bench import placement
from bench.placement import PAIRS, Costs, Simulation, conversations, recorded, simulate
from bench.report.model import read_report
from bench.scale.load.job import Job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_the_same_seed_gives_the_same_row(prefill: str, decode: str) -> None:
    rows = {
        simulate((prefill, decode), conversations(random.Random(3), 20, 5.0), num_workers=2, seed=3) for _ in range(2)
    }
    assert len(rows) == 1


def test_a_trace_is_served_and_its_repeated_prefixes_are_found() -> None:
    trace = [Job(float(second), 1024, 5, (0, 2 * second)) for second in range(1, 60)]
    workload = [*recorded(trace, random.Random(1), 300, 5.0)]
    row = simulate(("prefix", "affinity"), workload, num_workers=2, seed=1)
    assert row.hits_p > 0.3


def test_every_turn_ends_and_leaves_nothing() -> None:
    simulation = Simulation(Costs(), PREFILL_POLICIES["prefix"]([]), DECODE_POLICIES["affinity"]([]), 2)
    num_turns = 0
    for when_s, first in conversations(random.Random(1), 30, 50.0):
        simulation.at(when_s, lambda first=first: simulation.come(first))  # type: ignore[misc]
        turn = first
        while turn is not None:
            num_turns, turn = num_turns + 1, turn.then  # type: ignore[assignment]
    simulation.run()
    workers: list[Worker] = [*simulation.p, *simulation.d]
    assert simulation.num_done == num_turns == len(simulation.ttft_s)
    assert [worker.usage.in_flight for worker in workers] == [0] * 4
    assert set(simulation.used_blocks.values()) == {0}


def test_the_command_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    arguments = ["--conversations", "12", "--workers", "2", "--runs", "2", "--report", str(file)]
    monkeypatch.setattr("sys.argv", ["bench.placement", *arguments])
    assert placement.main() == 0
    found = read_report(file)
    assert len(found.tables[0].rows) == len(found.plots[0].lines[0].x) == len(PAIRS)

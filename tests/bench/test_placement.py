"""The placement simulation says the same twice, and loses no request."""

from __future__ import annotations

import random

import pytest

from bench.placement import PAIRS, Costs, Simulation, conversations, simulate
from router.placement import DECODE_POLICIES, PREFILL_POLICIES
from router.pool import Worker


@pytest.mark.parametrize(("prefill", "decode"), PAIRS)
def test_the_same_seed_gives_the_same_row(prefill: str, decode: str) -> None:
    rows = {simulate(prefill, decode, num=20, rate=5, num_workers=2, seed=3) for _ in range(2)}
    assert len(rows) == 1


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
    assert [worker.in_flight for worker in workers] == [0] * 4
    assert set(simulation.used_blocks.values()) == {0}

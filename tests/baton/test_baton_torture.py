"""``baton torture`` from its command line to its plan, and when its verdict counts. What it does is in tests/faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from baton.cli import main
from baton.torture.cluster import Shape
from baton.torture.records import Answer, Ask, Attempt, Fault
from baton.torture.reference import ReferenceError, agreed
from baton.torture.report import command
from baton.torture.settle import what_stays
from baton.torture.storm import Outcome, Plan
from baton.torture.validate import Judgement, Verdict

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "plan",
    [
        Plan(3, kills=200),
        Plan(0, seconds=90),
        Plan(7, kills=10, shape=Shape(2, 2, 2, prefill_tp=2, decode_tp=2)),
        Plan(7, kills=10, shape=Shape(1, 4, 3, prefill_tp=2), num_clients=5),
        Plan(7, kills=10, shape=Shape(decode_tp=4)),
    ],
)
def test_the_command_that_repeats_a_run_is_understood(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Plan] = []

    def torture(plan: Plan, report: Path | None) -> int:
        assert report is None
        given.append(plan)
        return 0

    monkeypatch.setattr("baton.torture.command.torture", torture)
    baton, *words = command(Outcome(plan)).split()
    assert baton == "baton" and main(words) == 0
    assert given == [plan]


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
    outcome = Outcome(Plan(1), [(attempt, Judgement(verdict))], [fault])
    assert outcome.good and outcome.tested is tested


def test_questions_with_two_answers_are_left_out_but_not_many_of_them() -> None:
    asks = [Ask(number, False, {}) for number in range(4)]
    alone = [Answer(text) for text in "abcd"]
    assert agreed(asks, [alone, [Answer(text) for text in "abxd"]]) == {0: alone[0], 1: alone[1], 3: alone[3]}
    with pytest.raises(ReferenceError, match="2 of 4"):
        agreed(asks, [alone, [Answer(text) for text in "abxd"], [Answer(text) for text in "axcd"]])


def test_tells_what_nothing_would_ever_remove_from_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("baton:router:ab", "x", ex=60)
        assert what_stays(redis_url) == ""
        client.zadd("baton:{ab}:leases", {"cd": 1})
        assert what_stays(redis_url) == "1 keys that never expire: baton:{ab}:leases"

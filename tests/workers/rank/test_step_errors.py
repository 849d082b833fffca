"""Steps that contradict what the rank knows are refused, not computed."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.steps import NewSequence, Row, Step
from baton_serve.workers.rank_protocol.errors import StepError
from tests.kits.rank.driver import GREEDY, Driver
from tests.kits.rank.models import Models

KNOWN = NewSequence(1, [5, 6, 7], [], GREEDY, [0])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(9, 0, 1, [], False), "unknown sequence 9"),
        (Row(1, 0, 0, [], False), "cannot compute"),
        (Row(1, -1, 2, [], False), "cannot compute"),
        (Row(1, 2, 2, [], False), "cannot compute"),
        (Row(1, 0, 2, [], True), "cannot sample"),
        (Row(1, 0, 3, [4], True), "outside 0 to 3"),
        (Row(1, 1, 1, [], False, 1), "cannot score"),
        (Row(1, 0, 1, [], False, 2), "cannot score"),
        (Row(1, 0, 3, [], True, 3), "cannot score"),
    ],
)
def test_rows(row: Row, reason: str, model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    with pytest.raises(StepError, match=reason):
        driver.runner.execute(Step(1, [], [], [KNOWN], [row]))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (NewSequence(1, [], [], GREEDY, []), "no tokens"),
        (NewSequence(1, [384], [], GREEDY, []), "vocabulary"),
        (NewSequence(1, [5], [-1], GREEDY, []), "vocabulary"),
        (NewSequence(1, [5], [], GREEDY, [-1]), "outside"),
    ],
)
def test_sequences(new: NewSequence, reason: str, model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    with pytest.raises(StepError, match=reason):
        driver.runner.execute(Step(1, [], [], [new], []))


def test_missing_block(model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    new = NewSequence(1, [5] * 17, [], GREEDY, [0])
    with pytest.raises(StepError, match="no block for token 16"):
        driver.runner.execute(Step(1, [], [], [new], [Row(1, 0, 17, [], True)]))


@pytest.mark.parametrize("block_id", [4, -1])
def test_version_of_no_block(block_id: int, model_of: Models) -> None:
    driver = Driver(model_of("llama"), num_blocks=4)
    with pytest.raises(IndexError):
        driver.runner.execute(Step(1, [(block_id, 1)], [], [], []))

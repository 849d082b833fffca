"""What benchmarks refuse before they run."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from bench.report.arguments import above_zero, at_least, counts, new_file


def test_numbers_have_the_type_of_their_bound() -> None:
    assert at_least(1)("7") == 7
    assert at_least(0.5)("0.5") == 0.5
    assert above_zero("0.1") == 0.1
    assert counts("100,6000") == [100, 6000]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", ""])
def test_runs_are_whole_and_at_least_one(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text or "''"):
        at_least(1)(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_rate_is_above_zero(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text):
        above_zero(text)


@pytest.mark.parametrize("text", ["", "1,", "1,0", "a"])
def test_a_list_has_numbers_above_zero(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        counts(text)


def test_a_report_needs_a_folder(tmp_path: Path) -> None:
    assert new_file(str(tmp_path / "report.json")) == tmp_path / "report.json"
    with pytest.raises(ArgumentTypeError, match="there is no folder"):
        new_file(str(tmp_path / "missing" / "report.json"))

"""Marks for tests of many cases that are alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def some_now(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """Each ``every``-th case as it is, and the others marked slow: ``make test-faults`` has all of them.

    A case is a tuple where a test has several parameters. Choose an ``every`` without a factor in common with the
    length of any dimension of a product, so that each value stays.
    """
    return [case if number % every == 0 else _marked(case) for number, case in enumerate(cases)]


def _marked(case: Any) -> Any:
    values, name = (case.values, case.id) if isinstance(case, ParameterSet) else (case, None)
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=pytest.mark.slow, id=name)

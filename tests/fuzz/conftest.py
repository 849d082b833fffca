"""The summary of how much was tried, and a router in front of scripted workers that sync tests can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import fuzz_kit
import pytest
from fuzz_kit import Stage

from workers.transfer.ucx import apply_ucx_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
#: For one test of the long profile.
LONG_TIMEOUT_S = 1800

# NIXL reads its environment when it is imported.
apply_ucx_environment("127.0.0.1")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A loop of our own, so that hypothesis can call into it many times."""
    with Stage() as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long profile takes its time."""
    for item in items:
        if fuzz_kit.LONG and HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many inputs were tried, by area."""
    if not fuzz_kit.tried:
        return
    terminalreporter.section("inputs tried")
    for area, count in sorted(fuzz_kit.tried.items()):
        terminalreporter.write_line(f"{count:8d}  {area}")
    terminalreporter.write_line(f"{sum(fuzz_kit.tried.values()):8d}  in all, {fuzz_kit.profile()}")

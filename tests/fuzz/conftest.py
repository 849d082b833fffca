"""The summary of how much was tried, and one loop for the tests of a file, whose router or worker lives on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_serve.core.ucx import apply_ucx_environment
from tests.kits.fuzz import profile

HERE = Path(__file__).parent
#: For one test of the long profile.
LONG_TIMEOUT_S = 1800

# NIXL reads its environment when it is imported.
apply_ucx_environment("127.0.0.1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long profile takes its time."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
        if profile.LONG and HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many inputs were tried, by area."""
    if not profile.tried:
        return
    terminalreporter.section("inputs tried")
    for area, count in sorted(profile.tried.items()):
        terminalreporter.write_line(f"{count:8d}  {area}")
    terminalreporter.write_line(f"{sum(profile.tried.values()):8d}  in all, {profile.profile()}")

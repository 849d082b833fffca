"""The summary of how much was tried, and a router in front of scripted workers that sync tests can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fuzz_kit
import pytest
from fuzz_kit import Stage

from workers.transfer.ucx import apply_ucx_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

# NIXL reads its environment when it is imported.
apply_ucx_environment("127.0.0.1")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A loop of our own, so that hypothesis can call into it many times."""
    with Stage() as made:
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many inputs were tried, by area."""
    if not fuzz_kit.tried:
        return
    terminalreporter.section("inputs tried")
    for area, count in sorted(fuzz_kit.tried.items()):
        terminalreporter.write_line(f"{count:8d}  {area}")
    terminalreporter.write_line(f"{sum(fuzz_kit.tried.values()):8d}  in all, {fuzz_kit.profile()}")

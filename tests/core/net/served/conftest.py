"""Everything that is true of a port is true of both kinds of request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kits.port import Served, as_calls, serving


@pytest.fixture(params=["asgi", "calls"], autouse=True)
def kind(request: pytest.FixtureRequest) -> None:
    as_calls.set(request.param == "calls")


@pytest.fixture
async def served(kind: None) -> AsyncIterator[Served]:
    """A port as most are; its tests have the time that every test has."""
    async with serving(timeout_s=None) as port:
        yield port

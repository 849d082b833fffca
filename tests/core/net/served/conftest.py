"""Everything that is true of a port is true of both kinds of request."""

from __future__ import annotations

import pytest

from tests.kits.port import as_calls


@pytest.fixture(params=["asgi", "calls"], autouse=True)
def kind(request: pytest.FixtureRequest) -> None:
    as_calls.set(request.param == "calls")

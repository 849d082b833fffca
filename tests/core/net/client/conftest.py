"""For connections whose other end is the test."""

from __future__ import annotations

import pytest


@pytest.fixture
def socketless(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Pipe`` has no socket whose options could be set."""
    monkeypatch.setattr("baton_serve.core.net.client.connection.set_tcp_options", lambda *_: None)

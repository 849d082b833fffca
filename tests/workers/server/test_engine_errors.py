"""The table from the engine's errors to HTTP."""

from __future__ import annotations

import pytest

from core.net.answers import retry_after
from workers.engine.api import EngineError, QueueFullError
from workers.server.answers.engine_errors import KINDS, to_api_error


def kinds_of(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in kinds_of(child))]


@pytest.mark.parametrize("kind", kinds_of(EngineError)[1:])
def test_every_error_of_the_engine_is_in_the_table(kind: type[EngineError]) -> None:
    assert kind.code in KINDS
    assert to_api_error(kind("why")).code == kind.code


def test_a_full_queue_says_when_to_come_again() -> None:
    error = to_api_error(QueueFullError("1024 sequences wait"))
    assert (error.status, error.type) == (429, "rate_limit_error")
    assert retry_after(error) == ((b"retry-after", b"1"),)

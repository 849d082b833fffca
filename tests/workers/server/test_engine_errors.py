"""The table from the engine's errors to HTTP."""

from __future__ import annotations

import pytest

from baton_serve.core.net.answers import retry_after
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.workers.engine.api import EngineError, GrammarFailedError, QueueFullError
from baton_serve.workers.server.answers.engine_errors import KINDS, to_api_error


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


def test_a_grammar_that_fails_names_its_parameter_and_says_a_sentence() -> None:
    failed = GrammarFailedError("Current row has 6007 items; max is 2000; consider this\n<non-verbose/>")
    error = to_api_error(failed, Form("grammar", "g", "structured_outputs.grammar"))
    assert (error.status, error.code, error.param) == (400, "grammar_failed", "structured_outputs.grammar")
    assert error.message == (
        "'structured_outputs.grammar' cannot be followed any further: it is too large or too complex to be followed."
    )

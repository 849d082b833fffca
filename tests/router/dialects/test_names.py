"""Errors of a chat name the parameters of the dialect."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.errors import BadRequestError, RateLimitError
from baton_serve.router.dialects.names import Names

NAMES = Names({"messages": "input", "a.b": "x", "a": "y.z"})


@pytest.mark.parametrize(
    ("param", "renamed"),
    [
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("messages_of_mine", "messages_of_mine"),
        ("a.b.c", "x.c"),
        ("a.c", "y.z.c"),
        ("tools", "tools"),
        (None, None),
    ],
)
def test_a_parameter_has_the_dialects_name(param: str | None, renamed: str | None) -> None:
    assert NAMES.renamed(BadRequestError("wrong", param=param)).param == renamed


@pytest.mark.parametrize(
    ("param", "message", "renamed"),
    [
        ("messages", "'messages' is wrong, not messages.", "'input' is wrong, not messages."),
        ("messages[3].content", "'messages[3].content' is wrong.", "'input' is wrong."),
        ("a.b.c", "'a.b.c' is wrong.", "'x.c' is wrong."),
        ("a", "'a.b2' is wrong in 'a'.", "'y.z.b2' is wrong in 'y.z'."),
        ("tools", "'tools' has none by the name 'messages'.", "'tools' has none by the name 'messages'."),
        (None, "'messages' are many.", "'messages' are many."),
    ],
)
def test_a_parameter_has_the_dialects_name_in_the_message_too(param: str | None, message: str, renamed: str) -> None:
    """What else is between quotes may be the client's own."""
    assert NAMES.renamed(BadRequestError(message, param=param)).message == renamed


def test_all_else_of_an_error_stays_as_it_is() -> None:
    renamed = NAMES.renamed(RateLimitError("busy", retry_after_s=3, code="full"))
    assert (renamed.status, renamed.type, renamed.code) == (429, "rate_limit_error", "full")
    assert (renamed.retry_after_s, renamed.message, renamed.param) == (3, "busy", None)


def test_an_error_that_is_raised_meanwhile_is_renamed() -> None:
    with pytest.raises(Exception, match="'input' is wrong") as caught, NAMES.applied():
        raise BadRequestError("'messages' is wrong", param="messages")
    assert getattr(caught.value, "param", None) == "input"

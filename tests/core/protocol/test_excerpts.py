"""What errors repeat is short and safe to print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.excerpts import MAX_CHARS, excerpt


@given(st.text(max_size=3 * MAX_CHARS) | st.text("\x00\x1b\n\u202e\U0010ffff", max_size=2 * MAX_CHARS))
def test_an_excerpt_is_short_and_printable_whatever_was_sent(sent: str) -> None:
    shown = excerpt(sent)
    assert shown.isprintable()
    assert len(shown) <= MAX_CHARS + 3


@given(st.text(max_size=MAX_CHARS))
def test_a_short_and_printable_text_is_shown_as_it_is(sent: str) -> None:
    assert (excerpt(sent) == sent) == sent.isprintable()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("Z" * MAX_CHARS, "Z" * MAX_CHARS),
        ("Z" * (MAX_CHARS + 1), "Z" * MAX_CHARS + "..."),
        ("a\x1b[2J\r\n\u202eb", "a\\x1b[2J\\r\\n\\u202eb"),
        ("\ud800", "\\ud800"),
        ("gr\u00fc\u00dfe \u4f60\u597d", "gr\u00fc\u00dfe \u4f60\u597d"),
    ],
)
def test_excerpts_cut_long_texts_and_escape_what_is_not_printable(sent: str, shown: str) -> None:
    assert excerpt(sent) == shown

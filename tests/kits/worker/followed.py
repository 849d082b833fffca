"""Whether a text is one that a form may end with, as llguidance judges the form's grammar."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLTokenizer

from baton_serve.core.protocol.openai.structured import Kind
from baton_serve.workers.grammar.notation import grammar_of
from tests.kits.whole import reference


def follows(kind: Kind, form: str, text: str) -> bool:
    """Whether the text is one that the form may end with."""
    tokenizer = _tokenizer()
    matcher = LLMatcher(tokenizer, grammar_of(kind, form), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = [token for byte in text.encode() for token in tokenizer.greedy_tokenize(bytes([byte]).decode("latin-1"))]
    if any(ord(letter) > 127 for letter in text):
        tokens = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(reference.tokenizer().backend_tokenizer.to_str(), eos_token=[0])

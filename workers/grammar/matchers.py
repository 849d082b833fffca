"""Compiles grammars, with the same bounds in a trial and in a rank."""

from __future__ import annotations

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from baton_serve.core.protocol.steps import Vocabulary

#: Far above what usual schemas need. They bound what following a grammar takes, but not what compiling takes.
_MAX_LEXER_STATES = 20_000
_MAX_GRAMMAR_SIZE = 100_000


def tokenizer_of(vocabulary: Vocabulary, vocab_size: int) -> LLTokenizer:
    """What masks are computed over; ``vocab_size`` is the model's. Raises ValueError."""
    # Without a size llguidance takes that of the tokenizer, and refuses a smaller one.
    eos = list(vocabulary.eos_token_ids)
    tokenizer = LLTokenizer(vocabulary.tokenizer, eos_token=eos)
    if tokenizer.vocab_size < vocab_size:
        tokenizer = LLTokenizer(vocabulary.tokenizer, n_vocab=vocab_size, eos_token=eos)
    return tokenizer


def matcher_of(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """The grammar, compiled; a matcher that has an error if it cannot be. Without limits in time and memory."""
    limits = LLParserLimits(
        max_lexer_states=_MAX_LEXER_STATES, max_grammar_size=_MAX_GRAMMAR_SIZE, verbose_errors=False
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def error_at_start(matcher: LLMatcher) -> str:
    """Why no answer can begin by the grammar; empty if one can. Some grammars compile that nothing follows."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    return str(matcher.get_error())

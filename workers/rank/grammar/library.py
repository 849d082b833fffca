"""Compiles grammars, in a thread, so that no step waits; the newest are kept.

Only the grammar's text and the sequence's tokens travel between workers: a sequence that comes from elsewhere, or comes
back after a preemption, replays its output.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from core.protocol.steps import CompileGrammar, GrammarCompiled, Vocabulary
from workers.rank.grammar.constraint import Constraint
from workers.rank.grammar.masks import native_ban

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Compiled grammars that are kept. One takes kilobytes, and a few MB after a long life.
MAX_GRAMMARS = 64
#: Far above what usual schemas need, and low enough that one grammar takes some 30 MB and a step's mask some 15 ms at
#: the most.
_MAX_LEXER_STATES = 20_000
_MAX_GRAMMAR_SIZE = 100_000


class GrammarLibrary:
    """``submit`` may be called from any thread, ``follow`` from the thread that executes steps."""

    def __init__(
        self, answer: Callable[[GrammarCompiled], None], vocab_size: int, *, max_grammars: int = MAX_GRAMMARS
    ) -> None:
        """``vocab_size`` is the model's, which may be larger than the tokenizer's. ``answer`` is called in a thread."""
        self._answer = answer
        self._vocab_size = vocab_size
        self._max_grammars = max_grammars
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._messages: queue.SimpleQueue[Vocabulary | CompileGrammar] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<GrammarLibrary {len(self._compiled)} grammars>"

    @property
    def mask_words(self) -> int:
        """The number of 32-bit words of a mask."""
        size = self._vocab_size if self._tokenizer is None else self._tokenizer.vocab_size
        return -(-size // 32)

    def submit(self, message: Vocabulary | CompileGrammar) -> None:
        """Handle a message after those before it. Starts the thread with the first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        self._messages.put(message)

    def handle(self, message: Vocabulary | CompileGrammar) -> None:
        """Handle a message in this thread."""
        if isinstance(message, Vocabulary):
            self._learn(message)
        else:
            error = self._find(message.grammar).get_error()
            self._answer(GrammarCompiled(message.compile_id, error))

    def follow(self, grammar: str, outputs: Sequence[int]) -> Constraint:
        """Follow the grammar from after ``outputs``. If that cannot be, the constraint's ``error`` says why."""
        try:
            matcher = self._find(grammar).deep_copy()
        except ValueError as error:
            return Constraint(None, str(error))
        constraint = Constraint(matcher, matcher.get_error())
        constraint.replay(outputs)
        return constraint

    def _run(self) -> None:
        while True:
            message = self._messages.get()
            try:
                self.handle(message)
            except ValueError as error:  # as llguidance says that it cannot read a tokenizer
                if isinstance(message, CompileGrammar):
                    self._answer(GrammarCompiled(message.compile_id, str(error)))

    def _learn(self, vocabulary: Vocabulary) -> None:
        # Without a size llguidance takes that of the tokenizer, and refuses a smaller one.
        eos = list(vocabulary.eos_token_ids)
        tokenizer = LLTokenizer(vocabulary.tokenizer, eos_token=eos)
        if tokenizer.vocab_size < self._vocab_size:
            tokenizer = LLTokenizer(vocabulary.tokenizer, n_vocab=self._vocab_size, eos_token=eos)
        self._tokenizer = tokenizer
        native_ban()  # compiled here, so that no step waits for it

    def _find(self, grammar: str) -> LLMatcher:
        """The grammar, compiled; a matcher that has an error if it cannot be. Raises ValueError without vocabulary."""
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        if self._tokenizer is None:
            raise ValueError("this model's tokenizer cannot be used with grammars")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > self._max_grammars:
                self._compiled.popitem(last=False)
        return matcher


def _limits() -> LLParserLimits:
    return LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, max_grammar_size=_MAX_GRAMMAR_SIZE, verbose_errors=False)

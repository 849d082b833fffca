"""Compiles grammars, in a thread, so that no step waits, and keeps them until the main process says that they may go.

A grammar is followed along one sequence: which tokens may come next.

Only the grammar's text and the sequence's tokens travel between workers: a sequence that comes from elsewhere, or comes
back after a preemption, replays its output.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from baton_serve.core.protocol.steps import CompileGrammar, ForgetGrammar, GrammarCompiled, Vocabulary
from baton_serve.workers.grammar.matchers import error_at_start, matcher_of, tokenizer_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """A compiled grammar. ``compile_id``: of the newest message that asked for it."""

    compile_id: int
    matcher: LLMatcher


class Constraint:
    """The state of a grammar after a sequence's output. It depends on the grammar and the output's tokens only.

    Once ``error`` is set, every token may come next: who runs the sequence has to end it.
    """

    def __init__(self, matcher: LLMatcher | None, error: str = "") -> None:
        self._matcher = matcher
        #: Why the grammar cannot be followed; "": it can.
        self.error = error

    def replay(self, outputs: Sequence[int]) -> None:
        """Go on to after the tokens, which are an output so far."""
        if self._matcher is None or self.error or not outputs:
            return
        taken = self._matcher.try_consume_tokens(list(outputs))
        if taken < len(outputs):
            self.error = f"the output does not follow it at token {taken}"

    def append(self, token: int) -> None:
        """Go on to after a sampled token."""
        if self._matcher is None or self.error:
            return
        if not self._matcher.consume_token(token):
            self.error = self._matcher.get_error() or "no token can come next"

    @property
    def matcher(self) -> LLMatcher | None:
        """What computes the mask of the tokens that may come next; None: all may, see ``error``."""
        return None if self.error else self._matcher

    def fail(self) -> None:
        """The computation of a mask has failed: from now on every token may come next, see ``error``."""
        assert self._matcher is not None
        self.error = self._matcher.get_error() or "its mask cannot be computed"


class GrammarLibrary:
    """``submit`` may be called from any thread, ``follow`` and ``forget`` from the thread that executes steps.

    A grammar that is compiled here has been tried elsewhere (``workers/grammar/trial``), because nothing here ends a
    compilation that takes minutes or all of the memory.
    """

    def __init__(self, answer: Callable[[GrammarCompiled], None], vocab_size: int) -> None:
        """``vocab_size`` is the model's, which may be larger than the tokenizer's. ``answer`` is called in a thread."""
        self._answer = answer
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._texts: dict[int, str] = {}
        self._messages: queue.SimpleQueue[Vocabulary | CompileGrammar] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<GrammarLibrary {len(self._kept)} grammars>"

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
        """Handle a message in this thread. Raises what the library raises for a vocabulary."""
        if isinstance(message, Vocabulary):
            self._tokenizer = tokenizer_of(message, self._vocab_size)
            return
        try:
            error = self._compile(message)
        except Exception as problem:  # noqa: BLE001 (of a library that compiles what any client sends)
            error = str(problem) or type(problem).__name__
        self._answer(GrammarCompiled(message.compile_id, error))

    def forget(self, message: ForgetGrammar) -> None:
        """Forget a grammar, unless it has been asked for again."""
        with self._lock:
            text = self._texts.pop(message.compile_id, "")
            kept = self._kept.get(text)
            if kept is not None and kept.compile_id == message.compile_id:
                del self._kept[text]

    def follow(self, grammar: str, outputs: Sequence[int]) -> Constraint:
        """Follow the grammar from after ``outputs``. If that cannot be, the constraint's ``error`` says why.

        It compiles nothing, as a step waits.
        """
        with self._lock:
            kept = self._kept.get(grammar)
        if kept is None:
            return Constraint(None, "this rank does not have it")
        constraint = Constraint(kept.matcher.deep_copy())
        constraint.replay(outputs)
        return constraint

    def _run(self) -> None:
        while True:
            try:
                self.handle(self._messages.get())
            except Exception:  # of a vocabulary: every grammar says then that it has none
                logger.exception("the vocabulary cannot be used with grammars")

    def _compile(self, message: CompileGrammar) -> str:
        """What is wrong with the grammar; empty if it is kept now."""
        with self._lock:
            kept = self._kept.get(message.grammar)
            if kept is not None:
                kept.compile_id = message.compile_id
                self._texts[message.compile_id] = message.grammar
                return ""
        if self._tokenizer is None:
            return "this model's tokenizer cannot be used with grammars"
        matcher = matcher_of(self._tokenizer, message.grammar)
        if error := error_at_start(matcher):
            return error
        with self._lock:
            self._kept[message.grammar] = _Kept(message.compile_id, matcher)
            self._texts[message.compile_id] = message.grammar
        return ""

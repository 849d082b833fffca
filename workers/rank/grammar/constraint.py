"""Follows a grammar along one sequence: which tokens may come next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher


class Constraint:
    """The state of a grammar after a sequence's output. It depends on the grammar and the output's tokens only.

    Once ``error`` is set, every token may come next: who runs the sequence has to end it.
    """

    def __init__(self, matcher: LLMatcher | None, error: str = "") -> None:
        self._matcher = matcher
        #: Why the grammar cannot be followed; "": it can.
        self.error = error

    def __repr__(self) -> str:
        return f"<Constraint {self.error or self._matcher!r}>"

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

"""Follows a grammar along one sequence: which tokens may come next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from llguidance import LLMatcher

#: All bits of a mask's word.
_ALL = -1


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

    def write_mask(self, words: torch.Tensor) -> None:
        """Set the bits of the tokens that may come next. ``words``: int32 on the CPU, contiguous, for all tokens."""
        if self._matcher is not None and not self.error:
            self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * 4)
            if not self._matcher.is_error():
                return
            self.error = self._matcher.get_error()
        words.fill_(_ALL)

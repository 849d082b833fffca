"""Turns tokens into text one at a time. Pure: the text is a function of the tokens (and the end of the prompt) only.

Tokens are not characters. In byte-level vocabularies one character may span several tokens; in SentencePiece ones the
decoder strips the space of whatever token comes first. So each token is decoded together with a few before it (the
*window*), and text comes out only where it cannot change any more:

- the window begins at a *clean* point: everything before it was given out and ended with whole characters,
- its first part, the *context*, has come out already and gives the rest its leading spaces,
- text that ends in U+FFFD may be the beginning of a character and waits for more tokens.

A token thus costs the decoding of a handful of tokens, however long the text is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
#: UTF-8 characters have at most four bytes, hence tokens. More than that pending is garbage, not a character to come.
MAX_PENDING = 8
#: Tokens at the end of the prompt that give the first output token its leading space.
CONTEXT_TOKENS = 4


class Detokenizer:
    """Feed tokens with ``push``, end with ``flush``; all that was returned, joined, is the decoded text.

    ``decode`` turns tokens into text (special ones skipped); ``is_visible`` is False for tokens that never give text.
    ``prompt`` ends in what the text continues.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_visible: Callable[[int], bool],
        prompt: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._is_visible = is_visible
        self._window = [token for token in prompt[-CONTEXT_TOKENS:] if is_visible(token)]
        self._num_context = len(self._window)
        # A character that the prompt begins and the output ends is the output's.
        self._context_text = decode(self._window).rstrip(REPLACEMENT) if self._window else ""

    def push(self, token: int) -> str:
        """Add a token; returns the text that became certain, often with earlier tokens' and often none."""
        if not self._is_visible(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._give_up(text) if len(self._window) - self._num_context > MAX_PENDING else ""
        delta = text[len(self._context_text) :]
        if delta:
            self._slide(text)
        return delta

    def flush(self) -> str:
        """The tokens have ended: give out what was held back, broken or not."""
        if len(self._window) == self._num_context:
            return ""
        text = self._decode(self._window)
        self._num_context = len(self._window)
        delta, self._context_text = text[len(self._context_text) :], text
        return delta

    def _slide(self, text: str) -> None:
        """All of the window has come out: what was pending becomes the context.

        A context that decodes to nothing by itself (a lone space that the decoder strips) would let the decoder take
        the next token for the first one; then the old context stays too.
        """
        pending = self._window[self._num_context :]
        context_text = self._decode(pending)
        if context_text:
            self._window, self._context_text = pending, context_text
        else:
            self._context_text = text
        self._num_context = len(self._window)

    def _give_up(self, text: str) -> str:
        """Too much is pending to be one character: give out all but the tokens that may begin the next one."""
        for num_kept in range(1, MAX_PENDING):
            head, tail = self._window[:-num_kept], self._window[-num_kept:]
            head_text = self._decode(head)
            if head_text + self._decode(tail) == text:
                break
        else:
            head_text, tail = text, []
        delta = head_text[len(self._context_text) :]
        self._window, self._num_context, self._context_text = tail, 0, ""
        return delta

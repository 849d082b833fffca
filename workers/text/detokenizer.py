"""Turns tokens into text one at a time. Pure: the text depends only on the tokens and on the end of the prompt.

Tokens are not characters. In byte-level vocabularies one character may span several tokens. In SentencePiece
vocabularies the decoder strips the space of the first token. So each token is decoded together with a few tokens before
it (the *window*), and text is returned only when later tokens cannot change it:

- The window begins where all text before it was returned and ended with a whole character.
- Its first part, the *context*, was returned already; it only gives the rest its leading spaces.
- Text that ends in U+FFFD may be the beginning of a character and waits for more tokens.

So adding a token decodes only a few tokens, however long the text is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

REPLACEMENT = "\ufffd"
#: Most tokens that wait for a character to end. A UTF-8 character has at most four bytes, so more tokens are garbage.
MAX_PENDING = 8
#: Tokens at the end of the prompt that give the first output token its leading space.
CONTEXT_TOKENS = 4


class Detokenizer:
    """Add tokens with ``push``, end with ``flush``; the returned strings, joined, are the decoded text.

    ``decode`` turns tokens into text; ``is_visible`` is False for tokens that never become text. ``prompt`` are the
    tokens before the text. A token of ``unspaced`` that follows another one has the text that is given there, without a
    space that the decoder would put between them.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        is_visible: Callable[[int], bool],
        prompt: Sequence[int] = (),
        unspaced: Mapping[int, str] | None = None,
    ) -> None:
        self._unspaced = unspaced or {}
        self._decode = decode
        self._is_visible = is_visible
        self._window = [token for token in prompt[-CONTEXT_TOKENS:] if is_visible(token)]
        self._num_context = len(self._window)
        # A character that begins in the prompt and ends in the output belongs to the output.
        self._context_text = decode(self._window).rstrip(REPLACEMENT) if self._window else ""

    def push(self, token: int) -> str:
        """Add a token; returns the text that is now certain, often none. It may include text of earlier tokens."""
        if not self._is_visible(token):
            return ""
        if token in self._unspaced and self._window and self._window[-1] in self._unspaced:
            return self._push_unspaced(token)
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._give_up(text) if len(self._window) - self._num_context > MAX_PENDING else ""
        delta = text[len(self._context_text) :]
        if delta:
            self._slide(text)
        return delta

    def flush(self) -> str:
        """After the last token: return the text that was held back, even if its last character is incomplete."""
        if len(self._window) == self._num_context:
            return ""
        text = self._decode(self._window)
        self._num_context = len(self._window)
        delta, self._context_text = text[len(self._context_text) :], text
        return delta

    def _push_unspaced(self, token: int) -> str:
        """Add a token whose text is known, and begin a new window with it."""
        text = self.flush() + self._unspaced[token]
        self._window, self._num_context, self._context_text = [token], 1, self._decode([token])
        return text

    def _slide(self, text: str) -> None:
        """Make the pending tokens the context, after the text of the whole window was returned.

        If the pending tokens alone decode to nothing (a single space that the decoder strips), the decoder would treat
        the next token as the first one. Then the old context is kept too.
        """
        pending = self._window[self._num_context :]
        context_text = self._decode(pending)
        if context_text:
            self._window, self._context_text = pending, context_text
        else:
            self._context_text = text
        self._num_context = len(self._window)

    def _give_up(self, text: str) -> str:
        """The pending tokens are too many for one character: return all but those that may begin the next one."""
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

"""What one sequence has said so far: text, logprobs, counts, and why it ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.engine.api import FinishReason
from workers.text.response_builder import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.engine.api import TokenOutput
    from workers.text.logprobs import Logprobs
    from workers.text.text_stream import TextStream


#: Tokens whose logprobs wait for their text in a stream; with twenty alternatives each is 1 to 2 KB. A client may have
#: text held back for as long as it likes, and no event shall grow with that.
MAX_WAITING = 16


class Transcript:
    """Feed outputs with ``add`` until ``finish_reason`` is set.

    A stop token is counted, but neither shown nor listed in the logprobs, so that the listed tokens make up the text.
    """

    def __init__(self, text: TextStream, logprobs: Logprobs | None, num_prompt_tokens: int) -> None:
        self._text = text
        self._logprobs = logprobs
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens: int | None = None
        #: The sampled tokens, those from elsewhere included.
        self.tokens: list[int] = []
        #: Leading ones of these that the client has from an answer that broke off: none of them is shown.
        self.num_given = 0
        #: OpenAI's ``stop`` or ``length``; None while it goes on.
        self.finish_reason: str | None = None

    def skip(self, tokens: Iterable[int]) -> None:
        """Go on after tokens that the client has seen; before anything else."""
        for token in tokens:
            if self._logprobs is not None:
                self._logprobs.resume(token, None)
            self.tokens.append(token)
            self._text.push(token)
        self.num_given = len(self.tokens)

    @property
    def stopped(self) -> bool:
        """The text has reached a stop string."""
        return self._text.stopped

    def resume(self, first_token: int, first_logprobs: dict[str, Any] | None, num_cached_tokens: int) -> str:
        """D: go on after the token that P sampled and showed; returns what P showed of it."""
        self._num_cached_tokens = num_cached_tokens
        if self._logprobs is not None:
            self._logprobs.resume(first_token, first_logprobs)
        self.tokens.append(first_token)
        return self._text.push(first_token)

    def add(self, output: TokenOutput) -> str:
        """One more token; returns the text that became certain.

        The token of a hand-off leaves back what D will make of it.
        """
        if self._num_cached_tokens is None:
            self._num_cached_tokens = output.num_cached_tokens
        self.tokens.append(output.token)
        ends = output.finish is FinishReason.STOP
        delta = self._text.push(output.token, ends=ends)
        if self._logprobs is not None and not ends:
            self._logprobs.add(output)
        if output.finish is not None and output.hand_off is None:
            delta += self._text.flush()
        self._conclude(output.finish)
        return delta

    @property
    def has_logprobs_due(self) -> bool:
        """Enough wait for their text: in a stream they go without it."""
        return self._logprobs is not None and self._logprobs.num_waiting >= MAX_WAITING

    def take_logprobs(self) -> dict[str, Any] | None:
        """The logprobs object since the last call; None when the client wants none."""
        return None if self._logprobs is None else self._logprobs.take()

    @property
    def usage(self) -> Usage:
        """Tokens so far, those from elsewhere included."""
        return Usage(self._num_prompt_tokens, self._text.num_tokens, self._num_cached_tokens or 0)

    def _conclude(self, finish: FinishReason | None) -> None:
        if self._text.stopped or finish is FinishReason.STOP:
            self.finish_reason = "stop"
        elif finish is not None:
            self.finish_reason = "length"

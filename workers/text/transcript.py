"""The answer to one request so far: text, logprobs, counts, and the finish reason. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from baton_serve.workers.engine.api import FinishReason, PromptOutput, TokenOutput
from baton_serve.workers.text.logprobs import Logprobs
from baton_serve.workers.text.response_builder import Usage
from baton_serve.workers.text.text_stream import TextStream

#: In a stream the logprobs of at most this many tokens wait for the tokens' text. The logprobs of one token with twenty
#: alternatives have 1 to 2 KB, and stop strings may hold back any amount of text, so an event needs this bound.
MAX_WAITING = 16


class Transcript:
    """Add outputs with ``add`` until ``finish_reason`` is set.

    A stop token is counted, but neither shown nor listed in the logprobs, unless the text is to end with it: the listed
    tokens are those of the text. ``stop_tokens`` are those of the client, not the model's own end-of-sequence tokens.
    """

    def __init__(
        self,
        text: TextStream,
        logprobs: Logprobs | None,
        num_prompt_tokens: int,
        stop_tokens: Container[int] = frozenset(),
    ) -> None:
        self._stop_tokens = stop_tokens
        self.text = text
        self._logprobs = logprobs
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens: int | None = None
        #: The output tokens, including those sampled on other workers.
        self.tokens: list[int] = []
        #: Number of leading tokens that the client got from another worker before a migration; not shown again.
        self.num_given = 0
        #: OpenAI's ``stop`` or ``length``; None while the answer continues.
        self.finish_reason: str | None = None
        self._num_listed = 0
        #: vLLM's: the stop string or the client's stop token that ended the answer; None for any other end.
        self.stop_reason: str | int | None = None

    def skip(self, token: int) -> str:
        """Continue after a token that the client has got from another worker; returns its text, which it has got too.

        Call this first, for each of them.
        """
        if self._logprobs is not None:
            self._logprobs.resume(token, None)
        self.tokens.append(token)
        self.num_given = self._num_listed = len(self.tokens)
        return self.text.push(token)

    def resume(self, first_token: int, first_logprobs: dict[str, Any] | None, num_cached_tokens: int) -> str:
        """On D: continue after the token that P sampled; returns the token's text, which P's answer has shown."""
        self._num_cached_tokens = num_cached_tokens
        if self._logprobs is not None:
            self._logprobs.resume(first_token, first_logprobs)
        self.tokens.append(first_token)
        self._num_listed = len(self.tokens)
        return self.text.push(first_token)

    def end_with_prompt(self, output: PromptOutput) -> None:
        """The answer has no tokens, if the output is the last one."""
        if output.finish is not None:
            self._num_cached_tokens = output.num_cached_tokens
            self.finish_reason = "length"

    def add(self, output: TokenOutput) -> str:
        """Add a token; returns the text that is now certain.

        The token of a hand-off is not flushed, because D continues the text, unless the token ends the answer.
        """
        if self._num_cached_tokens is None:
            self._num_cached_tokens = output.num_cached_tokens
        self.tokens.append(output.token)
        ends = output.finish is FinishReason.STOP
        delta = self.text.push(output.token, ends=ends)
        if self._logprobs is not None and (not ends or self.text.shows_stop):
            self._logprobs.add(output)
        if output.finish is not None and (output.hand_off is None or ends):
            delta += self.text.flush()
        self._conclude(output)
        return delta

    @property
    def has_logprobs_due(self) -> bool:
        """Whether ``MAX_WAITING`` tokens wait for their text: then a stream sends their logprobs without the text."""
        return self._logprobs is not None and self._logprobs.num_waiting >= MAX_WAITING

    def take_logprobs(self) -> dict[str, Any] | None:
        """The logprobs of the tokens since the last call; None if the client does not want any."""
        return None if self._logprobs is None else self._logprobs.take()

    def take_tokens(self) -> list[int]:
        """The tokens since the last call, or since those that the client has."""
        new, self._num_listed = self.tokens[self._num_listed :], len(self.tokens)
        return new

    @property
    def usage(self) -> Usage:
        """The token counts so far, including tokens sampled on other workers."""
        return Usage(self._num_prompt_tokens, self.text.num_tokens, self._num_cached_tokens or 0)

    def _conclude(self, output: TokenOutput) -> None:
        if self.text.stop_string is not None:
            self.finish_reason, self.stop_reason = "stop", self.text.stop_string
        elif output.finish is FinishReason.STOP:
            self.finish_reason = "stop"
            self.stop_reason = output.token if output.token in self._stop_tokens else None
        elif output.finish is not None:
            self.finish_reason = "length"

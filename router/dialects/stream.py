"""From the events of a chat's stream to the events of a dialect. Pure.

What comes out is independent of the pieces in which the chat's events come. A stream that goes on at another worker
is one stream here, since the relay sends on one.
"""

from __future__ import annotations

from baton_serve.core.protocol.errors import ApiError, UpstreamError
from baton_serve.router.dialects.chat_answers import ChatAnswer, ChatChoice, Usage, read_answer
from baton_serve.router.dialects.names import Names
from baton_serve.router.dialects.parts import Parts
from baton_serve.router.dialects.port import Ending, Translation
from baton_serve.router.upstream.events import END, data_of
from baton_serve.router.upstream.worker_errors import LOOKS_FAILED, error_event

_DONE = b"[DONE]"
#: After so many events in a row that the client is not shown, such as reasoning that it does not want, it is sent a
#: comment: proxies close silent connections.
MAX_SILENT = 64
SIGN_OF_LIFE = b": the model thinks\n\n"


class DialectStream:
    """Translates one stream."""

    def __init__(self, translation: Translation, names: Names) -> None:
        """``names``: of the dialect."""
        self._names = names
        self._writer = translation.writer()
        self._parts = Parts(self._writer, hides_reasoning=translation.hides_reasoning)
        self._has_begun = self._is_over = False
        #: Events since anything was written.
        self._num_silent = 0
        self._last: ChatChoice | None = None
        self._usage: Usage | None = None
        #: What was written and not returned yet. After an error it is returned by ``fail``, so that nothing is missing.
        self._written = self._parts.written

    def feed(self, events: bytes) -> bytes:
        """Add whole events of the chat; returns the dialect's. Raises UpstreamError; then ``fail`` comes next."""
        for event in events.split(END):
            if event:
                self._take(event)
                self._num_silent = 0 if self._written else self._num_silent + 1
        if self._num_silent >= MAX_SILENT:
            self._num_silent = 0
            self._written.append(SIGN_OF_LIFE)
        return self._new()

    def fail(self, error: ApiError) -> bytes:
        """The stream has broken off, for an error of a chat; returns its last events."""
        self._fail(error)
        return self._new()

    def _new(self) -> bytes:
        written = b"".join(self._written)
        self._written.clear()
        return written

    def _take(self, event: bytes) -> None:
        data = data_of(event)
        if data is None:  # a comment, which shows that the worker still computes
            self._written.append(event + END)
            return
        error = error_event(event) if LOOKS_FAILED in event else None
        if error is not None:
            self._fail(error)
        elif not self._is_over:
            self._end() if data.strip() == _DONE else self._add(read_answer(data))

    def _add(self, chunk: ChatAnswer) -> None:
        self._usage = chunk.usage or self._usage
        self._begin(chunk.created)
        for choice in chunk.choices:
            self._parts.take(choice.delta, choice.tokens)
            if choice.finish_reason is not None:
                self._last = choice

    def _begin(self, created: int) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._written.append(self._writer.begin(created, self._usage))

    def _end(self) -> None:
        last = self._last
        if last is None or last.finish_reason is None:
            raise UpstreamError("A worker's stream has not said why it ended.")
        self._is_over = True
        ending = Ending(last.finish_reason, last.stop_reason, self._usage)
        self._parts.finish(is_complete=ending.is_complete)
        self._written.append(self._writer.end(self._parts.all, ending))

    def _fail(self, error: ApiError) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._begin(0)
        self._written.append(self._writer.fail(self._parts.all, self._names.renamed(error)))

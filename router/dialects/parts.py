"""From the deltas of a chat, or its whole answer, to its parts: reasoning, text and calls, one after the other. Pure.

The parts depend on the texts only, and not on the deltas in which they come.
"""

from __future__ import annotations

from typing import Any

from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.router.dialects.chat_answers import CallDelta, Delta, read_answer
from baton_serve.router.dialects.port import Ending, EventWriter, Kind, Part


class Parts:
    """The parts of one answer, in ``all``. Each is opened and closed once, and no two are open at a time."""

    def __init__(self, writer: EventWriter, *, hides_reasoning: bool) -> None:
        """``writer`` is told of each change. ``hides_reasoning``: the client wants none."""
        self.all: list[Part] = []
        #: What ``writer`` returned.
        self.written: list[bytes] = []
        self._writer = writer
        self._hides_reasoning = hides_reasoning
        self._open: Part | None = None
        #: The number of the call that came last.
        self._call = -1
        #: Logprobs of tokens that came before there was a text.
        self._waiting: list[dict[str, Any]] = []

    def take(self, delta: Delta, tokens: list[dict[str, Any]]) -> None:
        """Add a delta. ``tokens``: the logprobs that came with it. Raises UpstreamError."""
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and not self._hides_reasoning:
            self._add(Kind.REASONING, reasoning)
        self._waiting += tokens
        if delta.content or (tokens and self._open is not None and self._open.kind is Kind.TEXT):
            self._add(Kind.TEXT, delta.content or "")
        for number, call in enumerate(delta.tool_calls or ()):
            self._take_call(call, number if call.index is None else call.index)

    def finish(self, *, is_complete: bool) -> None:
        """The answer is over. A complete answer has a text or a call, so that clients find what they look for."""
        if is_complete and all(part.kind is Kind.REASONING for part in self.all):
            self._begin(Part(Kind.TEXT, len(self.all)))
        if self._open is not None:
            self._open.is_complete = is_complete
            # A stop string may end an answer in a call, and a limit only in the mark behind it.
            if self._open.kind is Kind.CALL and self._open.text:
                self._open.is_complete = self._open.arguments is not None
        self._close()

    def _add(self, kind: Kind, piece: str) -> None:
        part = self._open
        if part is None or part.kind is not kind:
            part = self._begin(Part(kind, len(self.all)))
        self._go_on(part, piece)

    def _take_call(self, call: CallDelta, number: int) -> None:
        part = self._open
        if number > self._call:
            self._call = number
            part = self._begin(Part(Kind.CALL, len(self.all), call.id or "", call.function.name or ""))
        elif number < self._call or part is None or part.kind is not Kind.CALL:
            raise UpstreamError("A worker went back to a call that was over.")
        if call.function.arguments:
            self._go_on(part, call.function.arguments)

    def _begin(self, part: Part) -> Part:
        self._close()
        self._open = part
        self.all.append(part)
        self.written.append(self._writer.open(part))
        return part

    def _go_on(self, part: Part, piece: str) -> None:
        tokens: list[dict[str, Any]] = []
        if part.kind is Kind.TEXT:
            tokens, self._waiting = self._waiting, tokens
        part.pieces.append(piece)
        part.tokens += tokens
        self.written.append(self._writer.add(part, piece, tokens))

    def _close(self) -> None:
        part, self._open = self._open, None
        if part is not None:
            self.written.append(self._writer.close(part))


def whole_answer(body: bytes, *, hides_reasoning: bool) -> tuple[int, list[Part], Ending]:
    """When the answer was made (Unix seconds), its parts and its end, from a chat's body. Raises UpstreamError."""
    found = read_answer(body)
    if not found.choices:
        raise UpstreamError("A worker's answer has no choice.")
    choice = found.choices[0]
    ending = Ending(choice.finish_reason or "stop", choice.stop_reason, found.usage)
    parts = Parts(EventWriter(), hides_reasoning=hides_reasoning)
    parts.take(choice.message, choice.tokens)
    parts.finish(is_complete=ending.is_complete)
    return found.created, parts.all, ending

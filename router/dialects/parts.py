"""From the deltas of a chat to the parts of its answer: reasoning, text and calls, one after the other. Pure.

The parts depend on the texts only, and not on the deltas in which they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from baton_serve.core.protocol.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton_serve.router.dialects.chat_answers import CallDelta, ChatChoice, Delta


class Kind(Enum):
    """What a part is."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


@dataclass
class Part:
    """One part. ``text``: of a call its arguments. ``tokens``: the logprobs of a text's tokens."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    #: False: the answer ended in it, for whatever reason.
    is_complete: bool = True

    @property
    def text(self) -> str:
        """All that has come of it."""
        return "".join(self.pieces)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """Of a call, if it has all of them. There may be none at all."""
        try:
            found = orjson.loads(self.text or "{}")
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None


class Action(Enum):
    """What happens to a part. Each is opened and closed once, and no two are open at a time."""

    OPEN = auto()
    ADD = auto()
    CLOSE = auto()


class Change(NamedTuple):
    """One change of one part. ``piece`` and ``tokens`` are what was added."""

    action: Action
    part: Part
    piece: str = ""
    tokens: Sequence[dict[str, Any]] = ()


class Parts:
    """The parts of one answer, in ``all``. ``hides_reasoning``: the client wants none."""

    def __init__(self, *, hides_reasoning: bool = False) -> None:
        self.all: list[Part] = []
        self._hides_reasoning = hides_reasoning
        self._open: Part | None = None
        #: The number of the call that came last.
        self._call = -1
        #: Logprobs of tokens that came before there was a text.
        self._waiting: list[dict[str, Any]] = []

    def take(self, delta: Delta, tokens: list[dict[str, Any]]) -> Iterator[Change]:
        """Add a delta. ``tokens``: the logprobs that came with it. Raises UpstreamError."""
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and not self._hides_reasoning:
            yield from self._add(Kind.REASONING, reasoning)
        self._waiting += tokens
        if delta.content or (tokens and self._open is not None and self._open.kind is Kind.TEXT):
            yield from self._add(Kind.TEXT, delta.content or "")
        for number, call in enumerate(delta.tool_calls or ()):
            yield from self._take_call(call, number if call.index is None else call.index)

    def take_whole(self, choice: ChatChoice, *, is_complete: bool) -> list[Part]:
        """Add a message that has come whole, and returns its parts. Raises UpstreamError."""
        for _ in (*self.take(choice.message, choice.tokens), *self.finish(is_complete=is_complete)):
            pass
        return self.all

    def finish(self, *, is_complete: bool) -> Iterator[Change]:
        """The answer is over. One that is complete has a text or a call, so that clients find what they look for."""
        if is_complete and all(part.kind is Kind.REASONING for part in self.all):
            yield from self._begin(Part(Kind.TEXT, len(self.all)))
        if self._open is not None:
            self._open.is_complete = is_complete
            # A stop string may end an answer in a call, and a limit only in the mark behind it.
            if self._open.kind is Kind.CALL and self._open.text:
                self._open.is_complete = self._open.arguments is not None
        yield from self._close()

    def _add(self, kind: Kind, piece: str) -> Iterator[Change]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(Part(kind, len(self.all)))
        yield self._added(piece)

    def _take_call(self, call: CallDelta, number: int) -> Iterator[Change]:
        is_new = number > self._call
        if not (is_new or (number == self._call and self._open is not None and self._open.kind is Kind.CALL)):
            raise UpstreamError("A worker went back to a call that was over.")
        if is_new:
            self._call = number
            yield from self._begin(Part(Kind.CALL, len(self.all), call.id or "", call.function.name or ""))
        if call.function.arguments:
            yield self._added(call.function.arguments)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self._close()
        self._open = part
        self.all.append(part)
        yield Change(Action.OPEN, part)

    def _added(self, piece: str) -> Change:
        part = self._open
        assert part is not None
        tokens: list[dict[str, Any]] = []
        if part.kind is Kind.TEXT:
            tokens, self._waiting = self._waiting, tokens
        part.pieces.append(piece)
        part.tokens += tokens
        return Change(Action.ADD, part, piece, tokens)

    def _close(self) -> Iterator[Change]:
        part, self._open = self._open, None
        if part is not None:
            yield Change(Action.CLOSE, part)

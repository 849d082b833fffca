"""From the whole answer of a chat to the parts of an answer in a dialect. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from baton_serve.router.dialects.chat_answers import read_whole
from baton_serve.router.dialects.parts import Parts
from baton_serve.router.dialects.port import Ending

if TYPE_CHECKING:
    from baton_serve.router.dialects.parts import Part


class WholeAnswer(NamedTuple):
    """An answer that has come in one piece. ``created``: Unix seconds."""

    created: int
    parts: list[Part]
    ending: Ending


def whole_answer(body: bytes, *, hides_reasoning: bool = False) -> WholeAnswer:
    """The answer in a chat's body. Raises UpstreamError."""
    found, choice = read_whole(body)
    ending = Ending(choice.finish_reason or "stop", choice.stop_reason, found.usage)
    parts = Parts(hides_reasoning=hides_reasoning).take_whole(choice, is_complete=ending.is_complete)
    return WholeAnswer(found.created, parts, ending)

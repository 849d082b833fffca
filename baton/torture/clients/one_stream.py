"""Whether what a client reads is one stream of OpenAI's, whichever workers computed it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.baton.torture.records import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

FINGERPRINT = "system_fingerprint"
#: Fields that have the same value in all events of a stream.
SAME = ("id", "object", "created", "model", FINGERPRINT)


class OneStream:
    """Call ``take`` with each event, then ``end``. Both raise AnswerError when the events are not one stream.

    Only the first event of each choice of a chat has the role. The finish reason of each comes once, and nothing of
    that choice after it. The usage comes once, in an event of its own, and nothing after it.
    """

    def __init__(self, *, chat: bool, num_choices: int = 1) -> None:
        self._chat = chat
        self._same: dict[str, Any] | None = None
        #: The number of events of each choice.
        self._num_events = [0] * num_choices
        self._finished = [False] * num_choices
        self._has_usage = False

    def take(self, event: Mapping[str, Any]) -> None:
        """Check the next event."""
        same = {key: event.get(key) for key in SAME}
        if same[FINGERPRINT] is None:  # vLLM sends it in some events only
            same[FINGERPRINT] = (self._same or same)[FINGERPRINT]
        elif self._same is not None and self._same[FINGERPRINT] is None:
            self._same[FINGERPRINT] = same[FINGERPRINT]
        self._same = self._same or same
        _unless(same == self._same, f"an event of another stream: {same}, not {self._same}")
        _unless(not self._has_usage, "an event after the usage")
        if event.get("usage") is not None:
            _unless(all(self._finished), "the usage before the finish reason")
            _unless(not event.get("choices"), "the usage in an event with choices")
            self._has_usage = True
            return
        choices = event.get("choices")
        _unless(isinstance(choices, list) and len(choices) == 1, f"not one choice: {choices}")
        assert choices
        self._take_choice(choices[0])

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index")
        _unless(isinstance(index, int) and 0 <= index < len(self._finished), f"another index: {choice}")
        assert isinstance(index, int)
        _unless(not self._finished[index], f"after the finish reason: {choice}")
        if self._chat:
            has_role, number = "role" in (choice.get("delta") or {}), self._num_events[index]
            _unless(has_role == (number == 0), f"the role in event {number}: {choice}")
        self._num_events[index] += 1
        self._finished[index] = choice.get("finish_reason") is not None

    def end(self) -> None:
        """Check that the stream was complete when its end mark came."""
        _unless(all(self._finished), "the end mark without a finish reason")
        _unless(self._has_usage, "the end mark without a usage")


def _unless(fine: bool, what: str) -> None:
    if not fine:
        raise AnswerError(what[:300])

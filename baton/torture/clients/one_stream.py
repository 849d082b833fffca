"""Whether what a client reads is one stream of OpenAI's, whichever workers computed it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.torture.records import AnswerError

if TYPE_CHECKING:
    from collections.abc import Mapping

FINGERPRINT = "system_fingerprint"
#: Fields that have the same value in all events of a stream.
SAME = ("id", "object", "created", "model", FINGERPRINT)


class OneStream:
    """Call ``take`` with each event, then ``end``. Both raise AnswerError when the events are not one stream.

    Only the first event of a chat has the role. The finish reason comes once, and nothing of the answer after it. The
    usage comes once, in an event of its own, and nothing after it.
    """

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._same: dict[str, Any] | None = None
        self._num_choices = 0
        self._finished = False
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
            _unless(self._finished, "the usage before the finish reason")
            _unless(not event.get("choices"), "the usage in an event with choices")
            self._has_usage = True
            return
        choices = event.get("choices")
        _unless(isinstance(choices, list) and len(choices) == 1, f"not one choice: {choices}")
        assert choices
        self._take_choice(choices[0])

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        _unless(not self._finished, f"after the finish reason: {choice}")
        _unless(choice.get("index") == 0, f"another index: {choice}")
        if self._chat:
            has_role = "role" in (choice.get("delta") or {})
            _unless(has_role == (self._num_choices == 0), f"the role in event {self._num_choices}: {choice}")
        self._num_choices += 1
        self._finished = choice.get("finish_reason") is not None

    def end(self) -> None:
        """Check that the stream was complete when its end mark came."""
        _unless(self._finished, "the end mark without a finish reason")
        _unless(self._has_usage, "the end mark without a usage")


def _unless(fine: bool, what: str) -> None:
    if not fine:
        raise AnswerError(what[:300])

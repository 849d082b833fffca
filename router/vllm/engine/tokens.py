"""The ids of the tokens that a client has been sent, as vLLM's events tell them (``return_token_ids``). Pure.

vLLM may send ids before their text: part of a character, or a special token, has none. Another server continues after
the last id whose text has surely been sent, and computes the ids behind it again. An event with several ids does not
tell whether the text of the last one is complete; so the next event with one id and text has to come first.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from baton_serve.router.request.sent_tokens import MAX_IDS_BYTES, SentTokens
from baton_serve.router.upstream.events import DATA, END, EventTooLarge, data_of, is_done, with_data

#: Everything that the router asked for and a client did not: removed from its events.
_ASKED_FOR: Final = re.compile(rb',"(?:prompt_)?token_ids":(?:\[[0-9,]*\]|null)')
_IDS: Final = re.compile(rb'"token_ids":\[([0-9,]*)\]')
_PROMPT_IDS: Final = re.compile(rb'"prompt_token_ids":(\[[0-9,]+\])')
_FINISHED: Final = re.compile(rb'"finish_reason":"')
_TEXT: Final = re.compile(rb'"(?:delta":\{(?:"role":"assistant",)?"content|text)":"(?!")')
#: A delta with anything but text: what parsers of reasoning and tools put there.
_PARSED: Final = re.compile(rb'"(?:reasoning|reasoning_content|tool_calls|function_call|refusal|audio)":[^n]')
_CREATED: Final = re.compile(rb'"created":(\d{1,15})')


class VllmTokens(SentTokens):
    """The tokens of one stream, from all its servers. ``wants_ids``: the client itself asked for the ids."""

    __slots__ = (
        "_is_unknown",
        "_is_unsure",
        "_num_before",
        "_num_ids",
        "_sure_bytes",
        "_sure_ids",
        "_wants_ids",
        "prompt_token_ids",
    )

    def __init__(self, max_event_bytes: int, *, wants_ids: bool) -> None:
        super().__init__(max_event_bytes)
        self._wants_ids = wants_ids
        #: JSON list of the prompt's ids; empty: not known yet.
        self.prompt_token_ids = b""
        self._num_ids = 0
        #: How much of the ids has surely been shown: bytes, and ids.
        self._sure_bytes = self._sure_ids = 0
        self._is_unsure = False
        #: Whether the client was sent something that the ids do not tell.
        self._is_unknown = False
        #: Ids from the servers before this one; they are part of its prompt.
        self._num_before = 0

    def forget(self) -> None:
        """Forget all tokens: the answer starts again."""
        super().forget()
        self._num_ids = self._sure_bytes = self._sure_ids = self._num_before = 0
        self._is_unsure = self._is_unknown = False

    def leg(self, first: bytes, *, named: bool, opens: bool) -> None:
        """Note that a server's stream starts with ``first``."""
        super().leg(first, named=named, opens=opens)
        if not self.created and (created := _CREATED.search(first)) is not None:
            self.created = int(created[1])
        del self._ids[self._sure_bytes :]
        self._num_ids = self._num_before = self._sure_ids

    def take(self, data: bytes, num_events: int) -> bytes:
        """Note the tokens of whole events; returns what to send the client now. Raises EventTooLarge.

        The last events are held until all of them have come, so that what was sent is never a whole answer.
        """
        events = data.split(END)[:-1]
        return b"".join(map(self._taken, events))

    def can_continue(self) -> bool:
        """Whether another server can continue: prompt and tokens are known, and their text was shown as it is."""
        known = bool(self.prompt_token_ids) and not (self._is_unsure or self._is_unknown)
        # A client that sees ids would get those again whose text it does not have yet.
        repeats = self._wants_ids and self._num_ids != self._sure_ids
        return self.named and known and not repeats

    def ids(self) -> list[int] | None:
        """Ids of all tokens whose text the client has; None if a server made up one that is no number."""
        try:
            return [int(one) for one in self._ids[: self._sure_bytes].split(b",") if one]
        except ValueError:  # of thousands of digits
            return None

    @property
    def num_sure(self) -> int:
        """The number of ``ids``."""
        return self._sure_ids

    def all_ids(self) -> bytes:
        """JSON list of the prompt's ids and of those that the client has."""
        sent = bytes(self._ids[: self._sure_bytes]).strip(b",")
        return b"%b,%b]" % (self.prompt_token_ids[:-1], sent) if sent else self.prompt_token_ids

    def _taken(self, event: bytes) -> bytes:
        event += END
        if event.find(DATA[:-1]) < 0:  # a comment
            return event
        if self._last_words or _FINISHED.search(event):
            return self._hold(self._shown(event))
        ids = _IDS.search(event)
        if not self.prompt_token_ids and (prompt := _PROMPT_IDS.search(event)) is not None:
            self.prompt_token_ids = prompt[1]
        if ids is not None and ids[1]:
            self._note_ids(ids[1], has_text=_TEXT.search(event) is not None)
        if _PARSED.search(event):
            self._is_unknown = True
        return self._shown(event)

    def _note_ids(self, ids: bytes, *, has_text: bool) -> None:
        if len(self._ids) + len(ids) > MAX_IDS_BYTES:
            self._is_unknown = True
            return
        num = ids.count(b",") + 1
        self._ids += ids + b","
        self._num_ids += num
        if not has_text:
            return
        self._is_unsure = num > 1
        self._sure_bytes, self._sure_ids = len(self._ids), self._num_ids

    def _hold(self, event: bytes) -> bytes:
        self._last_words += event
        if is_done(event):
            whole = bytes(self._last_words)
            self._last_words.clear()
            return whole
        if len(self._last_words) > self._max_event_bytes:
            raise EventTooLarge("The last events of the answer are together", self._max_event_bytes)
        return b""

    def _shown(self, event: bytes) -> bytes:
        """The event as the client gets it."""
        if not self._wants_ids:
            event = _ASKED_FOR.sub(b"", event)
        return event if not self.begun or is_done(event) else self._continued(event)

    def _continued(self, event: bytes) -> bytes:
        """An event of a continued stream: without a second role, with the first server's time, and the whole usage."""
        data = data_of(event)
        if data is None:
            return event
        chunk = orjson.loads(data)
        if _is_only_role(chunk):
            return b""
        for part in (chunk, *(chunk.get("choices") or ())):
            part.pop("prompt_token_ids", None)  # they contain the answer so far
        if self.created:
            chunk["created"] = self.created
        usage = chunk.get("usage")
        if usage:
            usage["prompt_tokens"] -= self._num_before
            usage["completion_tokens"] += self._num_before
        return with_data(event[: -len(END)], orjson.dumps(chunk)) + END


def _is_only_role(chunk: dict[str, Any]) -> bool:
    """Take the role out of a chunk; returns whether nothing else was in it."""
    choices = chunk.get("choices") or ()
    deltas = [choice.get("delta") or {} for choice in choices]
    roles = [delta.pop("role", None) for delta in deltas]
    return any(roles) and not any(delta.get("content") for delta in deltas)

"""Which tokens a client has been sent, as its workers named them: what another worker needs to go on. Pure.

D names the tokens of an event in a comment line before it, and says with ``:end`` that only its last words follow
(``docs/resume.md``). The lines are taken out here and kept as they are; they are read only when a worker fails. Last
words are held until all of them are there: the tokens named so far are then never a whole answer.
"""

from __future__ import annotations

import re

import orjson

from router.prefill_answer import DONE_EVENT

#: What asks a worker for the lines.
ASK_NAMES = ("x-baton-token-ids", "1")
END = b"\n\n"
_COLON = ord(":")
_LAST_WORDS = b":end"
_CACHED = re.compile(rb'"num_cached_tokens":\s*\d+')
_CREATED = re.compile(rb'"created":\s*(\d+)')


class Seen:
    """Of one stream, whatever workers it comes from. ``begun``: the client's answer has begun, its role is out."""

    __slots__ = ("_first_events", "_first_params", "_ids", "_last_words", "_num_unnamed", "begun", "created", "named")

    def __init__(self) -> None:
        self._ids = bytearray()
        self._last_words = b""
        self._first_events = b""
        self._first_params = b""
        self._num_unnamed = 0
        self.begun = False
        #: Of the client's chunks, Unix seconds; 0: not known yet.
        self.created = 0
        #: The worker that streams now names its tokens.
        self.named = False

    def forget(self) -> None:
        """Nothing of it counts: the answer begins anew."""
        self._ids.clear()
        self._first_params = b""
        self.begun = False
        self.created = 0

    def add(self, token: int) -> None:
        """P's token, which goes to the client."""
        self._ids += b":%d" % token
        self.begun = True

    def cached_as_first(self, params: bytes) -> bytes:
        """P's parameters, but of cached tokens as many as the first P had found: that is what ``usage`` is to say."""
        if not self._first_params:
            self._first_params = params
            return params
        first, last = _CACHED.search(self._first_params), _CACHED.search(params)
        return params if first is None or last is None else params[: last.start()] + first[0] + params[last.end() :]

    def leg(self, first: bytes, *, named: bool, opens: bool) -> None:
        """A worker's stream starts with ``first``. ``opens``: with a role, which nothing names."""
        self.named = named
        self._last_words = b""
        self._num_unnamed = -1 if opens else 0
        self._first_events = b"" if self.created else first

    def take(self, data: bytes, num_events: int) -> bytes:
        """Whole events of a worker that names tokens; what of them is for the client now."""
        if num_events == 1 and data[0] == _COLON:  # nearly always
            end = data.find(b"\n")
            line = data[:end]
            if line != _LAST_WORDS:
                self._ids += line
                return data[end + 1 :]
        return self._take_many(data)

    def _take_many(self, data: bytes) -> bytes:
        shown = b""
        if not self._last_words:
            begin = (b"\n" + data).find(b"\n" + _LAST_WORDS + b"\n")
            shown, data = (data, b"") if begin < 0 else (data[:begin], data[begin + len(_LAST_WORDS) + 1 :])
            shown = END.join([*map(self._note, shown.split(END)[:-1]), b""])
        self._last_words += data
        if self._last_words.endswith(DONE_EVENT):
            shown, self._last_words = shown + self._last_words, b""
        return shown

    def _note(self, event: bytes) -> bytes:
        """An event without its line."""
        if event[:1] != b":":
            self._num_unnamed += 1
            return event
        line, _, event = event.partition(b"\n")
        self._ids += line
        return event

    def can_go_on(self) -> bool:
        """Another worker can be told what the client has: all that it was sent had a name."""
        return self.named and self._num_unnamed <= 0 and self.ids() is not None

    def ids(self) -> list[int] | None:
        """All tokens that the client has; None if that is not known."""
        try:
            return [int(one) for one in self._ids.replace(b":", b",").split(b",") if one]
        except ValueError:
            return None

    def resume(self) -> bytes:
        """``kv_transfer_params.resume``, as JSON."""
        if not self.created:
            found = _CREATED.search(self._first_events)
            self.created = int(found[1]) if found else 0
        return orjson.dumps({"token_ids": self.ids() or [], "created": self.created})

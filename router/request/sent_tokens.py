"""The ids of the tokens that a client has been sent, which another worker needs to continue the stream. Pure.

D names (sends the ids of) an event's tokens in a comment line before it, and announces its last events with ``:end``
(``docs/resume.md``). The lines are removed here and kept unparsed; they are parsed only when a worker fails. The last
events are held until all of them have come, so that the tokens named so far are never a whole answer.

The parts of an echoed prompt come first, and name no token: their lines are empty.

Tokens that give no text are named, now and then, in an event of only that line, so that a stream is never silent while
its worker computes. Clients are not sent such events.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from baton_serve.router.upstream.events import DATA, DONE_EVENT, END, MAX_EVENT_BYTES, EventTooLarge, data_of

#: The header that asks a worker for these lines.
ASK_NAMES: Final = ("x-baton-token-ids", "1")
#: Bytes of the lines of one stream, about a million tokens. A longer stream cannot be continued.
MAX_IDS_BYTES = 8 << 20
#: Larger than any token id. A worker might send numbers that JSON cannot hold.
_NO_TOKEN: Final = 1 << 31
#: Bytes kept of a stream's first events, for ``created``.
_MAX_HEAD_BYTES: Final = 1024
_COLON: Final = ord(":")
_LAST_WORDS: Final = b":end"
_DATA_LINE: Final = b"\n" + DATA[:-1]
_CACHED_KEY: Final = b'cached_tokens"'
_CACHED: Final = re.compile(rb'cached_tokens":\s*(\d+)')
#: A worker might send a number that JSON cannot hold.
_CREATED: Final = re.compile(rb'"created":\s*(\d{1,15})')


class SentTokens:
    """The tokens of one stream, from all its workers.

    ``begun``: the client's answer has begun with its role.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._ids = bytearray()
        self._last_words = bytearray()
        self._first_events = b""
        #: The number of cached tokens that the first P reported; None: no P has answered.
        self._cached: bytes | None = None
        self._num_unnamed = 0
        #: The quick path of ``take`` is allowed while there are fewer bytes of ids than this.
        self._quick_bytes = MAX_IDS_BYTES
        self.begun = False
        #: ``Worker.weights_of`` of the workers that computed the tokens; fixed once the stream has begun.
        self.weights = ""
        #: Fingerprint of their adapter.
        self.adapter = ""
        #: ``created`` in the client's chunks, Unix seconds; 0: not known yet.
        self.created = 0
        #: Whether the worker that streams now names its tokens.
        self.named = False

    def forget(self) -> None:
        """Forget all tokens: the answer starts again."""
        self._ids.clear()
        self._cached = None
        self.begun = False
        self.created = 0

    def come_from(self, weights: str, adapter: str = "") -> None:
        """Note that the next tokens come from a worker with these weights. The weights may include ``adapter``'s."""
        if not self.begun:
            self.weights, self.adapter = weights, adapter

    def add(self, token: int) -> None:
        """Note P's token, which is sent to the client."""
        self._ids += b":%d" % token
        self.begun = True

    def cached_as_first(self, said: bytes) -> bytes:
        """P's parameters, or the end of its answer, with the number of cached tokens that the first P reported."""
        found = _CACHED.search(said, max(0, said.rfind(_CACHED_KEY)))  # the key comes after long lists
        if self._cached is None:
            self._cached = b"" if found is None else found[1]
            return said
        if found is None or not self._cached:
            return said
        return said[: found.start(1)] + self._cached + said[found.end(1) :]

    def leg(self, first: bytes, *, named: bool, opens: bool) -> None:
        """Note that a worker's stream starts with ``first``. ``opens``: with a role event, which names no token."""
        self.named = named
        self._last_words.clear()
        self._num_unnamed = -1 if opens else 0
        self._first_events = b"" if self.created else first[:_MAX_HEAD_BYTES]
        # If a stream begins with tokens without text, ``created`` comes only with a later event.
        self._quick_bytes = MAX_IDS_BYTES if self.created or num_shown(first) else 0

    def take(self, data: bytes, num_events: int) -> bytes:
        """Note the tokens of whole events; returns what to send the client now. Raises EventTooLarge."""
        if num_events == 1 and data[0] == _COLON:  # nearly always
            end = data.find(b"\n")
            line = data[:end]
            if line != _LAST_WORDS and end + len(END) < len(data) and len(self._ids) < self._quick_bytes:
                self._ids += line
                return data[end + 1 :]
        return self._take_many(data)

    def _take_many(self, data: bytes) -> bytes:
        shown = b""
        if not self._last_words:
            begin = (b"\n" + data).find(b"\n" + _LAST_WORDS + b"\n")
            shown, data = (data, b"") if begin < 0 else (data[:begin], data[begin + len(_LAST_WORDS) + 1 :])
            shown = END.join([*filter(None, map(self._note, shown.split(END)[:-1])), b""])
        self._last_words += data
        if self._last_words.endswith(DONE_EVENT):
            shown += bytes(self._last_words)
            self._last_words.clear()
        elif len(self._last_words) > self._max_event_bytes:
            raise EventTooLarge("The last events of the answer are together", self._max_event_bytes)
        return shown

    def _note(self, event: bytes) -> bytes:
        """Note the line of an event, and return the event without it; empty if there is nothing else."""
        if event[:1] != b":":
            if event[:1] == b"\n":
                return self._note(_from_its_line(event))
            self._num_unnamed += 1
            return event
        line, _, event = event.partition(b"\n")
        if len(self._ids) < MAX_IDS_BYTES:
            self._ids += line
        else:
            self._num_unnamed += 2  # more than one role event can make up for
        if event and not self._quick_bytes:
            self._first_events, self._quick_bytes = event[:_MAX_HEAD_BYTES], MAX_IDS_BYTES
        return event

    def can_continue(self) -> bool:
        """Whether another worker can continue: the id of every token that the client was sent is known."""
        return self.named and self._num_unnamed <= 0 and self.ids() is not None

    def ids(self) -> list[int] | None:
        """Ids of all tokens that the client has; None if they are not known."""
        try:
            ids = [int(one) for one in self._ids.replace(b":", b",").split(b",") if one]
        except ValueError:
            return None
        return ids if all(0 <= one < _NO_TOKEN for one in ids) else None

    def resume(self) -> bytes:
        """The JSON for ``kv_transfer_params.resume``: what another worker needs to continue."""
        if not self.created:
            found = _CREATED.search(self._first_events)
            self.created = int(found[1]) if found else 0
        adapter = {"adapter": self.adapter} if self.adapter else {}
        return orjson.dumps({"token_ids": self.ids() or [], "created": self.created, **adapter})


def has_token(events: bytes) -> bool:
    """Whether any of these whole events is named and not a part of an echoed prompt, which has a line without ids."""
    return any(event[:1] == b":" and event[1:2] != b"\n" for event in map(_from_its_line, events.split(END)))


def _from_its_line(event: bytes) -> bytes:
    return event.lstrip(b"\n") if event[:1] == b"\n" else event


def num_shown(events: bytes) -> int:
    """The number of these whole events that have data, which alone are shown to the client."""
    num = begin = 0
    while begin < len(events):
        end = events.find(b"\n", begin)
        if not events.startswith(DATA, begin) or events[end + 1 : end + 2] != b"\n":
            return _num_shown(events)
        num += 1  # nearly always: one line, with data
        begin = end + len(END)
    return num


def _num_shown(events: bytes) -> int:
    """Of any events."""
    if events.find(_DATA_LINE) < 0 and not events.startswith(DATA[:-1]):  # only comments
        return 0
    return sum([data_of(event) is not None for event in events.split(END)])

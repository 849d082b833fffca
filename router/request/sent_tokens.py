"""Which tokens a client has been sent, as its workers named them: what another worker needs to continue. Pure.

D names the tokens of an event in a comment line before it, and says with ``:end`` that only its last words follow
(``docs/resume.md``). The lines are taken out here and kept as they are; they are read only when a worker fails. Last
words are held until all of them are there: the tokens named so far are then never a whole answer.

Tokens that give no text are named in an event of nothing but that line, now and then, so that a stream is never silent
while its worker computes. No client is sent it.
"""

from __future__ import annotations

import re

import orjson

from router.upstream.events import DONE_EVENT, END, MAX_EVENT_BYTES, EventTooLarge

#: The header that asks a worker for these lines.
ASK_NAMES = ("x-baton-token-ids", "1")
#: Bytes of the lines of one stream, about a million tokens. A longer stream cannot be continued.
MAX_IDS_BYTES = 8 << 20
#: Above any vocabulary. A worker may write numbers that JSON cannot have.
_NO_TOKEN = 1 << 31
#: Bytes kept of a stream's first events, for ``created``.
_MAX_HEAD_BYTES = 1024
_COLON = ord(":")
_LAST_WORDS = b":end"
_CACHED_KEY = b'cached_tokens"'
_CACHED = re.compile(rb'cached_tokens":\s*(\d+)')
_CREATED = re.compile(rb'"created":\s*(\d+)')


class SentTokens:
    """The tokens of one stream, whichever workers it comes from.

    ``begun``: the client's answer has begun with its role.
    """

    __slots__ = (
        "_cached",
        "_first_events",
        "_ids",
        "_last_words",
        "_max_event_bytes",
        "_num_unnamed",
        "_quick_bytes",
        "begun",
        "created",
        "named",
        "weights",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._ids = bytearray()
        self._last_words = bytearray()
        self._first_events = b""
        #: The number of cached tokens that P told first; None: no P has answered.
        self._cached: bytes | None = None
        self._num_unnamed = 0
        #: While there are fewer bytes of ids, an event with its line takes the quick path.
        self._quick_bytes = MAX_IDS_BYTES
        self.begun = False
        #: ``weights_fingerprint`` of the workers that the tokens are from; it counts once the stream has begun.
        self.weights = ""
        #: ``created`` in the client's chunks, Unix seconds; 0: not known yet.
        self.created = 0
        #: The worker that streams now names its tokens.
        self.named = False

    def forget(self) -> None:
        """Forget all tokens: the answer begins anew."""
        self._ids.clear()
        self._cached = None
        self.begun = False
        self.created = 0

    def come_from(self, weights: str) -> None:
        """The next tokens are of a worker with these weights."""
        if not self.begun:
            self.weights = weights

    def add(self, token: int) -> None:
        """Note P's token, which is sent to the client."""
        self._ids += b":%d" % token
        self.begun = True

    def cached_as_first(self, said: bytes) -> bytes:
        """P's parameters, or the end of its answer, with the number of cached tokens that the first P told."""
        found = _CACHED.search(said, max(0, said.rfind(_CACHED_KEY)))  # it comes behind long lists
        if self._cached is None:
            self._cached = b"" if found is None else found[1]
            return said
        if found is None or not self._cached:
            return said
        return said[: found.start(1)] + self._cached + said[found.end(1) :]

    def leg(self, first: bytes, *, named: bool, opens: bool) -> None:
        """A worker's stream starts with ``first``. ``opens``: with a role, which is an event without a name."""
        self.named = named
        self._last_words.clear()
        self._num_unnamed = -1 if opens else 0
        self._first_events = b"" if self.created else first[:_MAX_HEAD_BYTES]
        # A stream that begins with tokens without text tells only later when it was created.
        self._quick_bytes = MAX_IDS_BYTES if self.created or num_shown(first) else 0

    def take(self, data: bytes, num_events: int) -> bytes:
        """Note the tokens of whole events; returns what the client is to be sent now. Raises EventTooLarge."""
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
            self._num_unnamed += 1
            return event
        line, _, event = event.partition(b"\n")
        if len(self._ids) < MAX_IDS_BYTES:
            self._ids += line
        else:
            self._num_unnamed += 2  # one more than a role
        if event and not self._quick_bytes:
            self._first_events, self._quick_bytes = event[:_MAX_HEAD_BYTES], MAX_IDS_BYTES
        return event

    def can_continue(self) -> bool:
        """Another worker can be told what the client has: every token that it was sent had a name."""
        return self.named and self._num_unnamed <= 0 and self.ids() is not None

    def ids(self) -> list[int] | None:
        """All tokens that the client has; None if that is not known."""
        try:
            ids = [int(one) for one in self._ids.replace(b":", b",").split(b",") if one]
        except ValueError:
            return None
        return ids if all(0 <= one < _NO_TOKEN for one in ids) else None

    def resume(self) -> bytes:
        """``kv_transfer_params.resume``, as JSON."""
        if not self.created:
            found = _CREATED.search(self._first_events)
            self.created = int(found[1]) if found else 0
        return orjson.dumps({"token_ids": self.ids() or [], "created": self.created})


def num_shown(events: bytes) -> int:
    """How many of these whole events are more than comments."""
    return sum(not all(line[:1] == b":" for line in event.split(b"\n")) for event in events.split(END) if event)

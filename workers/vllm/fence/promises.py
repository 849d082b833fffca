"""What P's scheduler promises: a slot and a word for each request that may be handed off."""

from __future__ import annotations

import secrets
from collections import deque
from typing import Any

import msgspec

#: The field of ``kv_transfer_params`` that carries the promise.
FIELD = "fence"
#: Words are below this, since they pass through JSON, where larger numbers may lose digits.
WORD_BITS = 53
#: What a slot holds that belongs to no hand-off. No word has this value.
NO_WORD = 0


def num_slots(num_blocks: int, max_num_seqs: int) -> int:
    """How many requests of an engine may have a promise at once: each has a block of its own, or was preempted."""
    return num_blocks + max_num_seqs


class Promise(msgspec.Struct, frozen=True):
    """``word`` stands in slot ``slot`` of every rank of P for as long as P keeps the blocks."""

    slot: int
    word: int

    def as_params(self) -> dict[str, int]:
        """As it stands in ``kv_transfer_params``."""
        return {"slot": self.slot, "word": self.word}


def promise_of(params: dict[str, Any]) -> Promise | None:
    """The promise in ``kv_transfer_params``; None if there is none that D can check. Clients may have written it."""
    try:
        promise = msgspec.convert(params.get(FIELD), Promise)
    except (msgspec.ValidationError, UnicodeError):  # the second: half a character, which Python's strings can have
        return None
    is_possible = promise.slot >= 0 and NO_WORD < promise.word < 1 << WORD_BITS
    return promise if is_possible else None


class Told(msgspec.Struct):
    """What the ranks are told at the beginning of a step: first ``dropped`` counts, then ``begun``."""

    #: Requests that end without a hand-off.
    dropped: list[str]
    #: Requests that may be handed off, and have not been told before.
    begun: dict[str, Promise]


class Promises:
    """The promises of one engine. The same slot is promised to one request at a time."""

    def __init__(self, num_slots: int) -> None:
        #: Used in turn.
        self._free = deque(range(num_slots))
        self._promises: dict[str, Promise] = {}
        self._news = Told([], {})

    def begin(self, request_id: str) -> None:
        """Have the request's word stored. Does nothing if that was done before, as for a request that was preempted.

        Nor does it when all slots are taken: D then finds no promise, and computes the prompt itself.
        """
        if self._free and request_id not in self._promises:
            promise = Promise(self._free.popleft(), secrets.randbelow((1 << WORD_BITS) - 1) + 1)
            self._promises[request_id] = self._news.begun[request_id] = promise

    def promise(self, request_id: str) -> Promise | None:
        """What P's answer carries; None for a request that has not begun."""
        return self._promises.get(request_id)

    def end(self, request_id: str) -> None:
        """All ranks have overwritten the word. Does nothing for a request without a promise."""
        if (promise := self._promises.pop(request_id, None)) is not None:
            self._free.append(promise.slot)

    def drop(self, request_id: str) -> None:
        """The request ends without a hand-off, so the ranks are told. Does nothing for one without a promise."""
        if request_id in self._promises and self._news.begun.pop(request_id, None) is None:
            self._news.dropped.append(request_id)
        self.end(request_id)

    def news(self) -> Told:
        """What the ranks have not been told."""
        told, self._news = self._news, Told([], {})
        return told

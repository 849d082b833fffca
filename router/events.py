"""Whole events out of the bytes of a worker's stream, however they are cut. Pure."""

from __future__ import annotations

from router.upstream import LegError

#: What an event ends with.
END = b"\n\n"
#: Largest event of a worker's stream, bytes, unless ``max_event_bytes`` says otherwise.
MAX_EVENT_BYTES = 1 << 20


class EventTooLarge(LegError):
    """A worker sends what nobody of ours would: without a bound it would fill the router's memory."""


class EventCutter:
    """Of one stream. The beginning of an event is kept and looked at once, in however many pieces it comes."""

    __slots__ = ("_max_bytes", "_partial")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now. Raises EventTooLarge."""
        partial = self._partial
        if not partial and data.endswith(END):  # nearly always
            return data
        unseen = max(0, len(partial) - 1)
        partial += data
        end = partial.rfind(END, unseen)
        whole = b""
        if end >= 0:
            whole = bytes(partial[: end + len(END)])
            del partial[: end + len(END)]
        if len(partial) > self._max_bytes:
            raise EventTooLarge("an event was larger than allowed")
        return whole

    def rest(self) -> bytes:
        """What has come of the next event."""
        return bytes(self._partial)

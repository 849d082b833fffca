"""What a child process reports to its parent while it starts: one JSON object per line, on a pipe.

``{"event": "progress", "text": "loading weights"}``, any number of times, then exactly one of
``{"event": "ready", "url": "http://127.0.0.1:41234"}`` and ``{"event": "failed", "error": "one line for people"}``.
After ``ready`` a ``failed`` may still follow: the reason why a running process had to give up.

History
-------
1: first version.
2: ``ready`` has ``worker_id``.
"""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True, tag_field="event", tag="progress"):
    """A few words about what is being done now."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """The process serves. ``url`` is the base URL of its public port, ``internal_url`` of its internal one, if any.

    ``worker_id`` is the id that a worker announces; it is new at every start.
    """

    url: str
    internal_url: str = ""
    worker_id: str = ""


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The process cannot continue and exits after this."""

    error: str


Status = Progress | Ready | Failed

_decoder: msgspec.json.Decoder[Status] = msgspec.json.Decoder(Status)


def encode(status: Status) -> bytes:
    """The status as one line, newline included."""
    return msgspec.json.encode(status) + b"\n"


def decode(line: bytes) -> Status:
    """Parse one line; raises msgspec.DecodeError (ValidationError is one) for anything else."""
    return _decoder.decode(line)

"""Messages between ``baton scale`` and a running ``baton up``, over its control socket: JSON, one object per line.

``baton scale`` sends one ``Scale``. ``baton up`` answers with any number of ``Step`` and then with one ``Scaled`` or
``NotScaled``. Closing the connection earlier stops nothing.

History
-------
1: first version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Workers of one role that ``baton up`` can run.
MAX_WORKERS = 64
#: Longest line that ``baton up`` reads, bytes.
MAX_LINE_BYTES = 4096

_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]


class Scale(msgspec.Struct, frozen=True, tag_field="command", tag="scale", forbid_unknown_fields=True):
    """The wanted number of workers of each role; None: no change."""

    prefill: _Number | None = None
    decode: _Number | None = None


class Step(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """What is being done now, for people."""

    text: str


class Scaled(msgspec.Struct, frozen=True, tag_field="event", tag="scaled"):
    """The numbers of workers that serve now."""

    prefill: int
    decode: int


class NotScaled(msgspec.Struct, frozen=True, tag_field="event", tag="not_scaled"):
    """Not everything was done. ``error`` is one line that says why."""

    error: str


Answer = Step | Scaled | NotScaled

_command: msgspec.json.Decoder[Scale] = msgspec.json.Decoder(Scale)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode(message: Scale | Answer) -> bytes:
    """The message as one line, newline included."""
    return msgspec.json.encode(message) + b"\n"


def decode_command(line: bytes) -> Scale:
    """Parse one command. Raises msgspec.DecodeError (ValidationError is one) for anything else."""
    return _command.decode(line)


def decode_answer(line: bytes) -> Answer:
    """Parse one answer. Raises msgspec.DecodeError for anything else."""
    return _answer.decode(line)

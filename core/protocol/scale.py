"""What ``baton scale`` and a running ``baton up`` tell each other over its control socket: JSON, an object per line.

One ``Scale`` to ``baton up``; it answers with any number of ``Step`` and then exactly one of ``Scaled`` and
``NotScaled``. Who hangs up earlier ends nothing.

History
-------
1: first version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

#: Workers of one role that ``baton up`` runs at most.
MAX_WORKERS = 64
#: Longest line that ``baton up`` reads, bytes.
MAX_LINE_BYTES = 4096

_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]


class Scale(msgspec.Struct, frozen=True, tag_field="command", tag="scale", forbid_unknown_fields=True):
    """How many workers of each role there should be; None: as many as there are."""

    prefill: _Number | None = None
    decode: _Number | None = None


class Step(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """What is being done, for a person."""

    text: str


class Scaled(msgspec.Struct, frozen=True, tag_field="event", tag="scaled"):
    """Done: so many workers serve."""

    prefill: int
    decode: int


class NotScaled(msgspec.Struct, frozen=True, tag_field="event", tag="not_scaled"):
    """Nothing or not everything was done; one line that says why."""

    error: str


Answer = Step | Scaled | NotScaled

_command: msgspec.json.Decoder[Scale] = msgspec.json.Decoder(Scale)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode(message: Scale | Answer) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(message) + b"\n"


def decode_command(line: bytes) -> Scale:
    """Raises msgspec.DecodeError (ValidationError is one) for anything else."""
    return _command.decode(line)


def decode_answer(line: bytes) -> Answer:
    """Raises msgspec.DecodeError for anything else."""
    return _answer.decode(line)

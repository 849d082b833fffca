"""Messages between a worker's main process and the process that tries forms, framed by ``core/process/frames.py``.

The main process sends ``Begin``, then a ``Try`` for each form; each is answered by ``Tried`` before the next is sent.
"""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.openai.structured import Kind
from baton_serve.core.protocol.steps import Vocabulary


class Limits(msgspec.Struct, frozen=True):
    """What one form may take: seconds of a processor, and bytes of memory."""

    cpu_s: float
    memory_bytes: int


class Begin(msgspec.Struct, frozen=True):
    """What forms are tried with. ``vocab_size`` is the model's."""

    vocabulary: Vocabulary
    vocab_size: int
    limits: Limits


class Try(msgspec.Struct, frozen=True):
    """A form to try."""

    kind: Kind
    text: str


class Tried(msgspec.Struct, frozen=True):
    """The form's grammar, or what is wrong, in words for the client.

    ``is_final``: whether the form is to blame, so that trying it again would give the same.
    """

    grammar: str
    error: str = ""
    is_final: bool = True


BEGIN = msgspec.msgpack.Decoder(Begin)
TRY = msgspec.msgpack.Decoder(Try)
TRIED = msgspec.msgpack.Decoder(Tried)

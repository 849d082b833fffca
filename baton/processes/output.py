"""Printing for a person who may have gone away."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def say(text: str, stream: TextIO) -> None:
    """Print a line at once. When nobody can read it any more (``baton up | head -1``, a terminal that was closed) this
    and what follows goes nowhere: what runs does not depend on somebody watching.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Let the stream's descriptor lead nowhere; also what it still holds, so that closing it cannot fail."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to be led elsewhere
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)

"""Printing to a stream that may have no reader any more."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def say(text: str, stream: TextIO) -> None:
    """Print a line at once.

    When the stream has no reader any more (``baton up | head -1``, a terminal that was closed), this line and all later
    ones are dropped, and this process continues.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Redirect the stream's descriptor to /dev/null, so that flushing and closing the stream cannot fail."""
    with contextlib.suppress(OSError, ValueError):  # the stream has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)

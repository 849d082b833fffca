"""Errors of a rank, in its own process and in the main process.

RankError
├── ModelLoadError         the folder or hub id cannot be loaded
│   └── UnsupportedModelError   it can be loaded, but Baton's attention would compute something else
├── CacheError             the cache does not fit into memory
├── StepError              the scheduler asks for something impossible
├── SiblingLostError       another rank of the engine has ended, or never started; raised in the rank
└── RankEndedError         a rank process has ended; raised in the main process
    ├── RankStartError         before it was ready
    └── RankDeadError          after it was ready

Every message is one line for people.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Exit status of a rank that ends because it has lost another rank. It sends no ``RankFailed``: the cause is the end of
#: the other rank, which the main process may notice later.
SIBLING_LOST_STATUS = 3
#: Most characters of a message in logs, answers and load reports, which may quote a peer.
MAX_LINE_CHARS = 500


class RankError(Exception):
    """Base of all errors of a rank."""


class ModelLoadError(RankError):
    """The folder or hub id cannot be loaded."""


class UnsupportedModelError(ModelLoadError):
    """The model needs something that Baton's attention does not compute; the message names it."""


class CacheError(RankError):
    """The cache does not fit into memory."""


class StepError(RankError):
    """A step contradicts earlier messages. This is a bug of the scheduler; no request can cause it."""


class SiblingLostError(RankError):
    """Another rank of the engine has ended, or never started. That rank's end is what should be reported."""


class RankEndedError(RankError):
    """A rank process ended. ``in_consequence``: it ended only because another rank of its engine had ended."""

    def __init__(self, message: str, *, in_consequence: bool = False) -> None:
        super().__init__(message)
        self.in_consequence = in_consequence


class RankStartError(RankEndedError):
    """The rank process ended before it was ready."""


class RankDeadError(RankEndedError):
    """The rank process ended after it was ready, although the main process had not stopped it."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised in answer to."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """The message of an exception in one line of at most ``MAX_LINE_CHARS``."""
    return shortened(" ".join(str(error).split())) or type(error).__name__


def shortened(line: str, max_chars: int = MAX_LINE_CHARS) -> str:
    """The line, whose end is left out if it is longer."""
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."

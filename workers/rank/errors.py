"""Errors of a rank, on both sides of its socket.

RankError
├── ModelLoadError         the folder or hub id cannot be loaded
│   └── UnsupportedModelError   it can, but our attention would compute something else
├── CacheError             the cache does not fit
├── StepError              the scheduler asks for something impossible
├── FrameError             a frame is too long, cut off or not one of ours
├── RankStartError         the process ended before it was ready
└── RankDeadError          the process ended afterwards

Every message is one line for people.
"""

from __future__ import annotations


class RankError(Exception):
    """Something about a rank."""


class ModelLoadError(RankError):
    """The folder or hub id cannot be loaded."""


class UnsupportedModelError(ModelLoadError):
    """The model needs something that our attention does not compute; the message names it."""


class CacheError(RankError):
    """The cache does not fit into memory."""


class StepError(RankError):
    """A step that contradicts what the rank was told before. A bug of the scheduler, never of a client."""


class FrameError(RankError):
    """A frame is too long, cut off or not one of ours."""


class RankStartError(RankError):
    """The rank process ended before it was ready."""


class RankDeadError(RankError):
    """The rank process ended after it had been ready, without being asked to."""


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks and bounded."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."

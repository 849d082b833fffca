"""Errors of a rank, on both sides of its socket.

RankError
├── ModelLoadError         the folder or hub id cannot be loaded
│   └── UnsupportedModelError   it can, but our attention would compute something else
├── CacheError             the cache does not fit
├── StepError              the scheduler asks for something impossible
├── FrameError             a frame is too long, cut off or not one of ours
├── SiblingLostError       another rank of the engine is gone, or never came; raised in the rank
└── RankEndedError         what the main process makes of a rank's end
    ├── RankStartError         it came before the rank was ready
    └── RankDeadError          it came afterwards

Every message is one line for people.
"""

from __future__ import annotations

#: Exit status of a rank that ends because it has lost another one. It says nothing before: the other one's own end is
#: the reason, and nobody knows which of the two the main process hears first.
SIBLING_LOST_STATUS = 3


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


class SiblingLostError(RankError):
    """Another rank of the engine is gone, or never came. Its own end is the reason that people should hear."""


class RankEndedError(RankError):
    """A rank process ended. ``in_consequence``: only because another rank of its engine had."""

    def __init__(self, message: str, *, in_consequence: bool = False) -> None:
        super().__init__(message)
        self.in_consequence = in_consequence


class RankStartError(RankEndedError):
    """The rank process ended before it was ready."""


class RankDeadError(RankEndedError):
    """The rank process ended after it had been ready, without being asked to."""


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks and bounded."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."

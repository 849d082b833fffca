"""What records the work of a step to replay it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

#: Does on the device what it did when it was recorded, with what is in the same tensors now.
Replay = Callable[[], None]


class Recorder(Protocol):
    """Records ``work``, which reads and writes tensors that outlive it.

    It may run the work any number of times. Recordings are replayed one at a time, as they share memory.
    """

    def __call__(self, work: Callable[[], None]) -> Replay: ...

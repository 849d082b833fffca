"""What the HTTP server needs of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.engine.api import Engine
    from workers.engine.counters import EngineStats


class ObservableEngine(Protocol):
    """What the HTTP server needs of an engine beyond ``api.Engine``; ``AsyncEngine`` has it."""

    def stats(self) -> EngineStats:
        """All numbers of the engine."""

    def check(self) -> None:
        """Raise EngineFault if the block counts do not add up."""

    def begin_drain(self) -> None:
        """Refuse new requests."""


if TYPE_CHECKING:

    class ServedEngine(Engine, ObservableEngine, Protocol):
        """What requests and pages need."""

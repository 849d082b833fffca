"""What the pages of a worker tell about it, behind one small port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.engine.api import Engine
    from workers.engine.counters import EngineStats


class ObservableEngine(Protocol):
    """What the front needs of an engine beyond ``api.Engine``; ``AsyncEngine`` has it."""

    def stats(self) -> EngineStats:
        """One look at everything."""

    def check(self) -> None:
        """Raise EngineFault when the block ledger does not balance."""

    def begin_drain(self) -> None:
        """Take nothing new."""


if TYPE_CHECKING:

    class FrontEngine(Engine, ObservableEngine, Protocol):
        """Both."""

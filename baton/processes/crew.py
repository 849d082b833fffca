"""Children that do the same work: as long as one of them can do it, the others may be missing. Pure."""

from __future__ import annotations


class Crew:
    """Knows of whom among its members there is little hope that they will serve."""

    def __init__(self) -> None:
        self._hopeless: dict[str, bool] = {}

    def note(self, name: str, is_hopeless: bool) -> None:
        """A member serves, starts or has died; a name that is new joins."""
        self._hopeless[name] = is_hopeless

    def leave(self, name: str) -> None:
        """It is no member any more. Safe to call twice."""
        self._hopeless.pop(name, None)

    @property
    def is_lost(self) -> bool:
        """There is no hope of any member."""
        return all(self._hopeless.values())

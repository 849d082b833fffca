"""Children that stand in for each other: while one of them serves or may serve again, the others may fail. Pure."""

from __future__ import annotations


class Crew:
    """Knows which of its members are unlikely to serve again."""

    def __init__(self) -> None:
        self._hopeless: dict[str, bool] = {}

    def note(self, name: str, is_hopeless: bool) -> None:
        """Note whether there is little hope for a member. A new name joins."""
        self._hopeless[name] = is_hopeless

    def leave(self, name: str) -> None:
        """Remove a member. Safe to call twice."""
        self._hopeless.pop(name, None)

    @property
    def is_lost(self) -> bool:
        """Whether there is little hope for every member."""
        return all(self._hopeless.values())

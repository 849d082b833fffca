"""Values of labels that come from outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The value that stands for all values beyond the bounds.
OTHER: Final = "other"
#: Values of one label that workers list, and as many that clients name. A model has forty series, so all of them are
#: about twenty thousand.
MAX_VALUES: Final = 256
#: Characters of a value.
MAX_CHARS: Final = 256


class BoundedLabel:
    """The values of one label: the first that come, and ``OTHER`` for all further ones.

    Prometheus, and this process, keep each series for ever. Where a worker does not say which models it serves, any
    name is tried there, so a client could add series by the thousand. What workers list has a bound of its own, so
    that clients cannot use it up.
    """

    __slots__ = ("_listed", "_named")

    def __init__(self) -> None:
        self._listed: set[str] = set()
        self._named: set[str] = set()

    def workers_list(self, values: Iterable[str]) -> None:
        """Note what workers list."""
        for value in values:
            if len(self._listed) < MAX_VALUES and len(value) <= MAX_CHARS:
                self._listed.add(value)
                self._named.discard(value)

    def of(self, value: str) -> str:
        """What the label says for ``value``."""
        if value in self._listed or value in self._named:
            return value
        if len(self._named) >= MAX_VALUES or len(value) > MAX_CHARS:
            return OTHER
        self._named.add(value)
        return value

"""Values of labels that come from outside."""

from __future__ import annotations

from typing import Final

#: The value that stands for all values beyond the bound.
OTHER: Final = "other"
#: Values of one label. A model has forty series, so all of them are about ten thousand.
MAX_VALUES: Final = 256
#: Characters of a value.
MAX_CHARS: Final = 256


class BoundedLabel:
    """The values of one label: the first that come, and ``OTHER`` for all further ones.

    Prometheus, and this process, keep each series for ever. Where a worker does not say which models it serves, any
    name is tried there, so a client could add series by the thousand.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """What the label says for ``value``."""
        if value in self._known:
            return value
        if len(self._known) >= MAX_VALUES or len(value) > MAX_CHARS:
            return OTHER
        self._known.add(value)
        return value

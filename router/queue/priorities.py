"""Priority classes: names for priorities; lower numbers are more urgent. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import MAX_PRIORITY

#: The header in which a client, or a gateway before the router, names the class.
HEADER = "x-baton-priority"
#: Bound on the number of classes, since each is a time series in the metrics.
MAX_CLASSES = 32


def granted(client_priority: str, asked: int) -> int:
    """The priority that a client gets of the one that it ``asked`` for; ``client_priority``: the router's setting."""
    if client_priority == "ignore":
        return 0
    return asked if client_priority == "trusted" else max(asked, 0)


class PriorityClasses:
    """Parsed from texts ``name=number``, with names in lower case. Raises ValueError with one sentence."""

    def __init__(self, pairs: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {}
        for pair in pairs:
            name, _, number = (part.strip() for part in pair.partition("="))
            if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum() and name == name.lower()):
                raise ValueError("priority_classes are name=number, a name in lower case")
            if not number.removeprefix("-").isdecimal() or abs(int(number)) > MAX_PRIORITY:
                raise ValueError(f"priority_classes are name=number, a number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
            if name in self._numbers or int(number) in self._numbers.values():
                raise ValueError("two priority classes have the same name or number")
            self._numbers[name] = int(number)
        if not 0 < len(self._numbers) <= MAX_CLASSES:
            raise ValueError(f"there are 1 to {MAX_CLASSES} priority classes")
        self._by_urgency = sorted((number, name) for name, number in self._numbers.items())

    @property
    def names(self) -> list[str]:
        """The names, most urgent first."""
        return [name for _, name in self._by_urgency]

    def number_of(self, header: bytes) -> int:
        """The priority that a header names. Raises BadRequestError for a class that does not exist."""
        number = self._numbers.get(header.decode("latin-1").strip().lower())
        if number is None:
            raise BadRequestError(
                f"The header '{HEADER}' must be one of: {', '.join(self.names)}.", param=HEADER, code="invalid_value"
            )
        return number

    def name_of(self, priority: int) -> str:
        """The most urgent class whose number is not below ``priority``; the least urgent class if there is none."""
        return next((name for number, name in self._by_urgency if priority <= number), self._by_urgency[-1][1])

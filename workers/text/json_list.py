"""A list that is encoded while it grows, for answers that are about a whole prompt.

A long prompt has tens of thousands of tokens with twenty alternatives each. As Python's objects they take several times
the memory of their JSON, and to encode all at the end would stop the event loop for a tenth of a second and more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

#: Values that are encoded together. Shorter lists stay lists.
NUM_TOGETHER = 256


class JsonList:
    """Add values with ``append`` and ``extend``; ``value`` is what orjson encodes."""

    def __init__(self) -> None:
        self._encoded: list[bytes] = []
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._encoded) * NUM_TOGETHER + len(self._values)

    def append(self, value: Any) -> None:
        self._values.append(value)
        if len(self._values) == NUM_TOGETHER:
            self._encoded.append(orjson.dumps(self._values)[1:-1])
            self._values.clear()

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            self.append(value)

    def value(self) -> list[Any] | orjson.Fragment:
        if not self._encoded:
            return list(self._values)
        rest = [orjson.dumps(self._values)[1:-1]] if self._values else []
        return orjson.Fragment(b"[%b]" % b",".join([*self._encoded, *rest]))

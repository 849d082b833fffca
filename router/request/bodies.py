"""The body of a client's request, validated, and its encodings for workers. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


class ClientBody:
    """What a client sent, or what one choice of it is. ``fields`` is never changed."""

    __slots__ = ("_encoded", "_seed", "fields", "num_bytes")

    def __init__(self, fields: dict[str, Any], num_bytes: int = 0, other: ClientBody | None = None) -> None:
        """``num_bytes``: size of what the client sent, which stays in memory until the end; of a choice, its share.

        ``other``: a body that differs in nothing but the seed. What is encoded is the same for both.
        """
        self.fields = fields
        self.num_bytes = num_bytes
        self._encoded: dict[Callable[[ClientBody], memoryview], memoryview] = {} if other is None else other._encoded
        self._seed: int | None = None

    @property
    def seed(self) -> int:
        """A random seed, the same each time, for a body without one."""
        if self._seed is None:
            self._seed = random.getrandbits(53)
        return self._seed

    def encoded(self, encode: Callable[[ClientBody], memoryview]) -> memoryview:
        """``encode(self)``, what all legs have in common of the body: computed once until ``forget_encoded``.

        It must not depend on the seed.
        """
        encoded = self._encoded.get(encode)
        if encoded is None:
            encoded = self._encoded[encode] = encode(self)
        return encoded

    def forget_encoded(self) -> None:
        """Have ``encoded`` compute it again: for a request that waits, or may never need it again."""
        self._encoded.clear()

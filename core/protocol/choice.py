"""Which choice of a client's request a worker computes: the header with which a router tells it.

Each choice is a request of its own for workers, with an id of its own; in its answer it has the id of the whole.
"""

from __future__ import annotations

import re

import msgspec

from baton_serve.core.protocol.id_syntax import REQUEST_ID

HEADER = "x-baton-choice"
_VALUE = re.compile(rf"({REQUEST_ID.pattern}) (0|[1-9][0-9]{{0,5}}) (0|[1-9][0-9]{{0,14}})")


class Choice(msgspec.Struct, frozen=True):
    """``answer_id``: the request id that the client sees. ``created``: Unix seconds, the same in all choices."""

    answer_id: str
    index: int = 0
    created: int = 0

    def header(self) -> tuple[str, str]:
        """The header's name and value."""
        return HEADER, f"{self.answer_id} {self.index} {self.created}"


def choice_in(value: str) -> Choice | None:
    """The choice of a header's value; None if it is none."""
    match = _VALUE.fullmatch(value)
    return None if match is None else Choice(match[1], int(match[2]), int(match[3]))

"""Ids as people type and read them: any prefix that only one of them has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.admin_client import AdminError

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_SHOWN_CHARS = 8


def resolve(given: str, known: Iterable[str], what: str) -> str:
    """The one known id that is or begins with ``given``; AdminError when there is none or more than one."""
    ids = list(known)
    if given in ids:
        return given
    found = [each for each in ids if given and each.startswith(given)]
    if not found:
        raise AdminError(f"no {what} has an id that begins with '{given}'")
    if len(found) > 1:
        raise AdminError(f"'{given}' is the beginning of {len(found)} {what}s' ids; give more of it")
    return found[0]


def shorten(ids: Iterable[str]) -> dict[str, str]:
    """Each id and the shortest beginning, of 8 characters at least, that ``resolve`` takes for it."""
    known = sorted(set(ids))
    shown: dict[str, str] = {}
    for index, each in enumerate(known):
        neighbours = known[max(index - 1, 0) : index] + known[index + 1 : index + 2]
        needed = 1 + max((_common(each, other) for other in neighbours), default=0)
        shown[each] = each[: max(needed, MIN_SHOWN_CHARS)]
    return shown


def _common(left: str, right: str) -> int:
    """Characters that both begin with."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))

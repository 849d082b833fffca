"""Ids as people type and read them: any prefix that only one of them has; of a URL, as workers added by URL have for an
id, also without its scheme."""

from __future__ import annotations

from collections import Counter
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
    addresses = [each for each in ids if given and _address(each) == given]
    if len(addresses) == 1:
        return addresses[0]
    found = [each for each in ids if given and (each.startswith(given) or _address(each).startswith(given))]
    if not found:
        raise AdminError(f"no {what} has an id that begins with '{given}'")
    if len(found) > 1:
        raise AdminError(f"'{given}' is the beginning of {len(found)} {what}s' ids; give more of it")
    return found[0]


def shorten(ids: Iterable[str]) -> dict[str, str]:
    """Each id and the shortest beginning, of 8 characters at least, that ``resolve`` takes for it. Of a URL all but the
    scheme: its beginning says nothing.
    """
    every = set(ids)
    urls = {each for each in every if _address(each)}
    taken = Counter([*map(_address, urls), *every])
    shown = {each: _address(each) if taken[_address(each)] == 1 else each for each in urls}
    known = sorted(every - urls | set(map(_address, urls)))
    for index, each in enumerate(known):
        neighbours = known[max(index - 1, 0) : index] + known[index + 1 : index + 2]
        needed = 1 + max((_common(each, other) for other in neighbours), default=0)
        if each in every:
            shown.setdefault(each, each[: max(needed, MIN_SHOWN_CHARS)])
    return shown


def _address(worker_id: str) -> str:
    """What follows the scheme, if it is a URL."""
    return worker_id.partition("://")[2]


def _common(left: str, right: str) -> int:
    """Characters that both begin with."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))

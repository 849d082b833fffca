"""Ids of requests, workers, engines and routers as people read and type them. One rule, everywhere: what is shown is
``short``, and what is taken is the id or any beginning of it, of 4 characters at least, that no other has.

They are random hex from the first digit on, so that eight tell one from all that somebody can see. Workers that were
added by URL have that for an id. Its beginning means nothing, as ``10.0.0.5:80`` is another worker's address than
``10.0.0.5:8000``: it is shown without its scheme, and taken with or without it, but whole. A request may also be called
as its answer is (``chatcmpl-...``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from core.protocol.excerpts import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Characters that are shown of an id.
SHORT_CHARS = 8
#: Characters that somebody has to type: with fewer, a slip of the hand too often means another one.
MIN_CHARS = 4
#: Ids that are named where a beginning fits several.
_MAX_NAMED = 8
#: What the ``id`` of an answer has before the id of its request.
_ANSWERS = ("chatcmpl-", "cmpl-")


class IdError(Exception):
    """What was typed means no id, or not one. One line for people."""


class IdUnknown(IdError):
    """No id is it or begins with it."""


class IdTooShort(IdError):
    """It is no id, and too little to be taken for the beginning of one."""


class IdAmbiguous(IdError):
    """Several ids begin with it."""


def short(full: str) -> str:
    """What is shown of an id."""
    return _address(full) or full[:SHORT_CHARS]


def shorten(ids: Iterable[str]) -> dict[str, str]:
    """Each id and what is shown of it in a list of all: ``short``, or more where two begin alike, so that ``resolve``
    takes it.
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
            shown.setdefault(each, each[: max(needed, SHORT_CHARS)])
    return shown


def resolve(given: str, known: Iterable[str], what: str) -> str:
    """The one known id that is meant. ``what`` they are ids of is for the message. Raises IdError."""
    ids = list(known)
    if given in ids:
        return given
    addresses = [each for each in ids if given and _address(each) == given]
    if addresses:
        return only(given, addresses, what)
    check_length(given, what)
    return only(given, [each for each in ids if each.startswith(given) and not _address(each)], what)


def only(given: str, found: Sequence[str], what: str) -> str:
    """The one id in ``found``, which are all that begin with ``given``. Raises IdError."""
    if not found:
        raise IdUnknown(f"no {what} has an id that begins with '{excerpt(given)}'")
    if len(found) > 1:
        named = sorted(shorten(found).values())[:_MAX_NAMED]
        more = f" and {len(found) - len(named)} more" if len(found) > len(named) else ""
        raise IdAmbiguous(
            f"'{excerpt(given)}' is the beginning of {len(found)} {what}s' ids: {', '.join(named)}{more}; "
            "give more of it"
        )
    return found[0]


def check_length(given: str, what: str) -> None:
    """Raises IdTooShort."""
    if len(given) < MIN_CHARS:
        raise IdTooShort(
            f"'{excerpt(given)}' is too short for the id of a {what}: give at least {MIN_CHARS} characters of it"
        )


def request_of(given: str) -> str:
    """The id of a request, or its beginning, out of what may be the id of its answer."""
    for prefix in _ANSWERS:
        given = given.removeprefix(prefix)
    return given


def _address(full: str) -> str:
    """What follows the scheme, if it is a URL."""
    return full.partition("://")[2]


def _common(left: str, right: str) -> int:
    """Characters that both begin with."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))

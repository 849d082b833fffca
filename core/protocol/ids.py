"""Ids of requests, workers, engines and routers as people read and type them. One rule holds everywhere: ``short`` is
shown, and an id may be given whole or by its beginning, of at least 4 characters, which no other id may share.

Ids are random hex from the first digit on, so that eight digits nearly always differ. A worker that was added by URL
has that URL for an id. Its beginning means nothing, because ``10.0.0.5:80`` and ``10.0.0.5:8000`` are two workers: it
is shown without its scheme, and has to be given whole, with or without the scheme. A request may also be given by the
id of its answer (``chatcmpl-...``, ``resp_...``), and a worker by its name (``decode-1``), if ``baton up`` has given it
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix

from baton_serve.core.protocol.excerpts import excerpt

#: Characters of an id that are shown.
SHORT_CHARS = 8
#: Least characters of an id's beginning. With fewer, a typing error would too often name another id.
MIN_CHARS = 4
#: Ids that the error for an ambiguous beginning names.
_MAX_NAMED = 8
#: Prefixes of the ``id`` of an answer, which the id of its request follows.
_ANSWERS = ("chatcmpl-", "cmpl-", "resp_", "msg_")


class IdError(Exception):
    """What was given does not name one id. The message is one line for people."""


class IdUnknown(IdError):
    """No id begins with the given text."""


class IdTooShort(IdError):
    """The given text is too short for the beginning of an id."""


class IdAmbiguous(IdError):
    """Several ids begin with the given text."""


def short(full: str) -> str:
    """The part of an id that is shown."""
    return _address(full) or full[:SHORT_CHARS]


def shorten(ids: Iterable[str]) -> dict[str, str]:
    """Returns by id how a list shows it: its ``short`` form, or more where two ids begin alike, so that ``resolve``
    finds each.
    """
    every = set(ids)
    urls = {each for each in every if _address(each)}
    taken = Counter([*map(_address, urls), *every])
    shown = {each: _address(each) if taken[_address(each)] == 1 else each for each in urls}
    known = sorted(every - urls | set(map(_address, urls)))
    for index, each in enumerate(known):
        neighbours = known[max(index - 1, 0) : index] + known[index + 1 : index + 2]
        needed = 1 + max((len(commonprefix((each, other))) for other in neighbours), default=0)  # noqa: RUF071 (no paths)
        if each in every:
            shown.setdefault(each, each[: max(needed, SHORT_CHARS)])
    return shown


def resolve(given: str, known: Iterable[str], what: str, names: Mapping[str, str] | None = None) -> str:
    """The known id that ``given`` names. ``what`` names the kind of thing in the message. Raises IdError.

    ``names`` are the names of things by id. A whole name stands for an id, too.
    """
    ids = list(known)
    if given in ids:
        return given
    called = [each for each in ids if given and (names or {}).get(each) == given]
    if len(called) > 1:
        raise IdAmbiguous(f"{len(called)} {what}s are named '{excerpt(given)}': {_listed(called)}; give an id")
    if called:
        return called[0]
    addresses = [each for each in ids if given and _address(each) == given]
    if addresses:
        return only(given, addresses, what)
    check_length(given, what)
    beginning = [each for each in ids if each.startswith(given) and not _address(each)]
    return only(given, beginning, what, "" if names is None else ", or that name")


def only(given: str, found: Sequence[str], what: str, or_name: str = "") -> str:
    """The only id in ``found``, the ids that begin with ``given``. Raises IdError unless there is one.

    ``or_name`` says of what else there is none.
    """
    if not found:
        raise IdUnknown(f"no {what} has an id that begins with '{excerpt(given)}'{or_name}")
    if len(found) > 1:
        raise IdAmbiguous(
            f"'{excerpt(given)}' is the beginning of {len(found)} {what}s' ids: {_listed(found)}; give more of it"
        )
    return found[0]


def _listed(found: Sequence[str]) -> str:
    """Some of the ids, as a list shows them, and how many more there are."""
    named = sorted(shorten(found).values())[:_MAX_NAMED]
    return ", ".join(named) + (f" and {len(found) - len(named)} more" if len(found) > len(named) else "")


def check_length(given: str, what: str) -> None:
    """Check the length. Raises IdTooShort if ``given`` has fewer than ``MIN_CHARS`` characters."""
    if len(given) < MIN_CHARS:
        raise IdTooShort(
            f"'{excerpt(given)}' is too short for the id of a {what}: give at least {MIN_CHARS} characters of it"
        )


def request_of(given: str) -> str:
    """The id of a request, or its beginning, from that or from the id of its answer."""
    for prefix in _ANSWERS:
        given = given.removeprefix(prefix)
    return given


def _address(full: str) -> str:
    """The part after the scheme, if the id is a URL; else empty."""
    return full.partition("://")[2]

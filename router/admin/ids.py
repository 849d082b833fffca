"""Finds a request or worker by its id or the beginning of it: ``core/protocol/ids.py`` with the API's errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from baton_serve.core.protocol.errors import ApiError, BadRequestError, ConflictError, NotFoundError, UpstreamError
from baton_serve.core.protocol.ids import (
    SHORT_CHARS,
    IdAmbiguous,
    IdError,
    IdTooShort,
    IdUnknown,
    check_length,
    only,
    request_of,
    resolve,
)
from baton_serve.core.protocol.request_ids import is_request_id
from baton_serve.router.admin.answers import LocalIds
from baton_serve.router.admin.local import LocalRouter
from baton_serve.router.parts import Workers
from baton_serve.router.peers.asking import ask_all
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import Worker, WorkerPool

#: Matches beginnings of request ids. Other routers are asked only about text that matches.
_BEGINNING = re.compile("[0-9a-f]{1,31}")


async def one_request(here: LocalRouter, peers: PeerRouters, given: str) -> str:
    """The request id that ``given`` stands for. A whole id is returned without a search. Raises ApiError."""
    wanted = request_of(given)
    if is_request_id(wanted):
        return wanted
    try:
        check_length(wanted, "request")
        found = await _ids_of_all(here, peers, wanted) if _BEGINNING.fullmatch(wanted) else []
        return only(wanted, found, "live request")
    except IdError as error:
        raise _refusal(error, "request") from None


async def _ids_of_all(here: LocalRouter, peers: PeerRouters, beginning: str) -> list[str]:
    """Matching ids of all routers. Raises UpstreamError if a router that may have another match does not answer."""
    heard = await ask_all(peers, LocalIds, "GET", f"/internal/requests/ids?beginning={beginning}")
    found = [each for answer in (await here.ids(beginning), *heard.answers.values()) for each in answer.ids]
    is_enough = found and len(beginning) >= SHORT_CHARS
    if heard.errors and not is_enough:
        silent = ", ".join(heard.unreachable)
        raise UpstreamError(
            f"No answer from router {silent}, which may have a request whose id begins with '{beginning}': "
            "try again, or give the whole id.",
            code="router_unreachable",
        )
    return found


def one_worker(pool: WorkerPool, given: str) -> Worker:
    """The worker that ``given`` stands for. Raises ApiError."""
    workers = {worker.worker_id: worker for worker in pool}
    try:
        return workers[resolve(given, workers, "worker", _names(pool))]
    except IdError as error:
        raise _refusal(error, "worker") from None


def one_lost(workers: Workers, given: str) -> str | None:
    """The id of the lost worker that ``given`` stands for; None: no lost worker, or a known one as well."""
    known, lost = _names(workers.pool), {one.id: one.name for one in workers.lost.all()}
    found = known_or_given(lost | known, given, "worker", lost | known)
    return found if found in lost.keys() - known.keys() else None


def worker_or_given(pool: WorkerPool, given: str) -> str:
    """The id of the worker that ``given`` stands for, or ``given`` if there is none. Raises ApiError."""
    return known_or_given((each.worker_id for each in pool), given, "worker", _names(pool))


def _names(pool: WorkerPool) -> dict[str, str]:
    return {worker.worker_id: worker.name for worker in pool}


def known_or_given(known: Iterable[str], given: str, what: str, names: Mapping[str, str] | None = None) -> str:
    """The id that ``given`` stands for.

    An unknown id is returned unchanged, since a worker may have left. Raises ApiError.
    """
    try:
        return resolve(given, known, what, names)
    except IdUnknown:
        return given
    except IdError as error:
        raise _refusal(error, what) from None


def _refusal(error: IdError, what: str) -> ApiError:
    text = str(error)
    message = f"{text[0].upper()}{text[1:]}."
    if isinstance(error, IdAmbiguous):
        return ConflictError(message, code="ambiguous_id")
    if isinstance(error, IdTooShort):
        return BadRequestError(message, code="id_too_short")
    return NotFoundError(message, code=f"{what}_not_found")

"""Whether a request may be tried again after a worker failed, and how a stream that broke off goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.errors import ApiError, UpstreamError
from router.placement.ports import key_of
from router.request import Event
from router.upstream import ConnectError, ConnectionLost
from router.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE

if TYPE_CHECKING:
    from router.exchange import Exchange
    from router.upstream import LegError
    from router.workers import Worker

#: A stream that has got so many tokens further than it was when a worker died with it had no part in that: what kills
#: workers at one place would have killed the next one there. At most two tokens were computed and not sent when one was
#: killed (94 streams, 8 deaths), and a worker may hold back a few whose text is not whole.
CLEARED_AFTER_TOKENS = 8


class BrokeOff(Exception):
    """D's stream ended before its end. ``error`` is for the client if it cannot go on."""

    def __init__(self, error: ApiError, cause: LegError | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.died = has_died(error if cause is None else cause)


def has_died(error: Exception) -> bool:
    """The worker, or its engine, broke with the request on it; maybe because of the request."""
    if isinstance(error, ConnectError):
        return error.was_sent
    return isinstance(error, ConnectionLost) or (isinstance(error, ApiError) and error.code == ENGINE_DEAD)


def was_not_taken(error: Exception) -> bool:
    """The worker never had the request: it refused the connection, or its engine was dead before.

    That is no attempt: the worker is left out for everybody until it answers again.
    """
    if isinstance(error, ConnectError):
        return not error.was_sent
    return isinstance(error, ApiError) and error.code == ENGINE_GONE


def may_try_again(x: Exchange, error: ApiError, dead: Worker | None) -> None:
    """A worker failed, and not only to be reached; ``dead`` is the one that died of it, or with it.

    Raises what the client is told when that was enough. Who is asked again before anybody knows of its death, and
    breaks again, has died once.
    """
    services = x.services
    if dead is not None:
        _note_death(x, dead)
        if len(x.dead_engines) >= services.settings.max_worker_deaths:
            raise UpstreamError(
                f"{len(x.dead_engines)} workers died or lost their connection while they had this request; "
                "it is not given to another one.",
                code="worker_deaths",
            )
    if error.code == ABORTED:  # what only waits until it is taken costs no worker anything
        if x.was_aborted:
            return
        x.was_aborted = True
    if not services.retry_budget.take(asyncio.get_running_loop().time()):
        services.metrics.num_over_budget += 1
        raise error


def _note_death(x: Exchange, dead: Worker) -> None:
    """One more, and those that it has left behind since are forgotten. Unstreamed, nobody sees how far it is."""
    cleared_at = x.num_tokens - CLEARED_AFTER_TOKENS
    x.dead_engines = {key: num_tokens for key, num_tokens in x.dead_engines.items() if num_tokens > cleared_at}
    x.dead_engines[key_of(dead)] = x.num_tokens


def break_off(x: Exchange, broken: BrokeOff) -> None:
    """Have another worker go on: the request is QUEUED. Raises what the client is told if none shall."""
    error = x.last_error = broken.error
    if not x.seen.can_go_on():
        raise error
    try:
        if x.num_resumed >= x.services.settings.max_resumes:
            raise error
        may_try_again(x, error, x.decode_worker if broken.died else None)
    except ApiError:
        x.services.metrics.resumed["refused"] += 1
        raise
    if x.decode_worker is not None and error.code != ABORTED:  # which others wanted
        x.failed_decode.add(x.decode_worker)
    x.vacate()  # closes the connection: should that worker come back, it can do no harm
    x.seen.begun = True
    x.num_resumed += 1
    x.num_prefills = 0
    x.is_resuming = True
    x.on(Event.BROKE_OFF)


def able(x: Exchange, workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """Those that can go on after what the client has seen; all of them while it has seen nothing.

    They have the weights that it is from: another revision of the model would go on with other tokens.
    """
    if not x.seen.begun:
        return workers
    return tuple(
        worker for worker in workers if worker.compatibility_hash and worker.weights_fingerprint == x.seen.weights
    )


def other_layout(x: Exchange, source: Worker) -> bool:
    """A P and a D are there that are not of ``source``'s layout, and the budget has allowed to start again with them.

    ``source``'s own is then left out: its P are there, but nobody who reads from them.
    """
    try:
        route = x.services.pool.route(x.ask.model)
    except ApiError:  # all of them left; new ones may come
        return False
    ours = source.compatibility_hash
    others = (worker for worker in able(x, route.prefill) if worker.takes_work and worker.compatibility_hash != ours)
    if not any(reader.takes_work for worker in others for reader in route.readers(worker)):
        return False
    if not x.services.retry_budget.take(asyncio.get_running_loop().time()):
        return False  # it waits on, as long as it may
    x.failed_prefill.update(worker for worker in route.prefill if worker.compatibility_hash == ours)
    return True

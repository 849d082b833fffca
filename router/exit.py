"""The one place where every request ends, however it does.

``settle`` gives back whatever the request still holds: its place in a queue, its place on a worker (closing the
connection, which is how P or D learns to stop), and P's blocks, also those in an answer that it has not read yet. It
awaits nothing, so no cancellation can come between; what takes time goes on in tasks that others own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocol.errors import ApiError
from router.request import Event, State

if TYPE_CHECKING:
    from router.exchange import Exchange

log = logging.getLogger("baton.router")


class ClientGone(ApiError):
    """The client closed its connection. Nobody reads this error."""

    status = 499
    type = "client_gone"
    code = "client_gone"


def settle(x: Exchange, error: ApiError | None) -> None:
    """End the request: ``error`` None when the client has everything, else why not. Later calls do nothing."""
    if x.services.active.get(x.request_id) is not x:
        return
    state = x.progress.state
    if not x.progress.over:
        x.on(Event.ABORTED if error is not None and error is x.stop_error else Event.FAILED)
    if x.timer is not None:
        x.timer.cancel()
    x.drop_lease()
    x.services.active.remove(x)
    x.services.metrics.ended(x, state, error)
    x.vacate()  # last: it wakes others
    if x.services.settings.log_requests or x.progress.state is State.FAILED:
        _log(x, state, error or x.relayed_error)


def _log(x: Exchange, state: State, error: ApiError | None) -> None:
    log.info(
        "request %s %s after %.1f ms on %s and %s%s",
        x.request_id,
        x.progress.state,
        x.age_s() * 1e3,
        x.prefill_worker.worker_id if x.prefill_worker else "-",
        x.decode_worker.worker_id if x.decode_worker else "-",
        f", {state}: {error.code or error.type}: {error.message!r}" if error else "",
    )

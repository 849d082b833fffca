"""Gets one look at a router after the other, in a thread of its own."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from baton_serve.baton.operator.admin_client import AdminError, NotSupportedError
from baton_serve.baton.operator.top.look import Look, look_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton_serve.baton.operator.admin_client import AdminClient

#: Seconds between two requests to a router without a live view, and before the next request after an error.
PERIOD_S = 1.0

#: Called with each look, or with the reason why there is none.
Tell = Callable[[Look | AdminError], None]

#: The most snapshots for which a look waits for the numbers of the other routers.
_MAX_SNAPSHOTS = 5


def look_once(client: AdminClient) -> Look:
    """One look, with the numbers of every router that answers. Raises AdminError."""
    look = None
    try:
        with contextlib.closing(client.live()) as snapshots:
            for snapshot in itertools.islice(snapshots, _MAX_SNAPSHOTS):
                look = look_at(snapshot)
                if all(_has_told(router) for router in look.routers):
                    return look
    except NotSupportedError:
        return _ask(client)
    if look is None:
        raise AdminError(f"the router at {client.url} sent no snapshot")
    return look


def _has_told(router: Mapping[str, object]) -> bool:
    return router.get("num_requests") is not None or bool(router.get("error"))


def _ask(client: AdminClient) -> Look:
    """One look without the live view, and therefore without rates. Raises AdminError."""
    workers, lost = client.workers_and_lost()
    return look_at({"requests": client.requests(), "workers": workers, "lost": lost})


def watch(client: AdminClient, tell: Tell, stop: threading.Event) -> None:
    """Call ``tell`` with every look until ``stop`` is set.

    Looks come from the router's live view. A router that has none is asked every second.
    """
    streams = True
    while not stop.is_set():
        try:
            if streams:
                _pass_on(client.live(), tell, stop)
            else:
                tell(_ask(client))
        except AdminError as error:
            if streams and isinstance(error, NotSupportedError):
                streams = False
                continue
            tell(error)
        stop.wait(PERIOD_S)


def _pass_on(snapshots: Iterator[dict[str, object]], tell: Tell, stop: threading.Event) -> None:
    """Call ``tell`` with every snapshot until the stream ends. Raises AdminError when not even one comes.

    A stream that fell silent has ended as well: the next connection shows whether the router is there.
    """
    num_seen = 0
    try:
        for snapshot in snapshots:
            num_seen += 1
            tell(look_at(snapshot))
            if stop.is_set():
                return
    except AdminError:
        if num_seen == 0:
            raise

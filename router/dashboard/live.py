"""``GET /admin/live``: the newest snapshot of all routers, sent as a server-sent event whenever it has changed.

While a page is watching, the state is sampled twice a second; to send every change of every request would cost the hot
path more. All watchers share one snapshot. For a slow reader only one event waits; after that it gets the newest. A
reader that does not read at all is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton_serve.core.net.served.connection import DROP
from baton_serve.router.dashboard.fan_out import FanOut
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.schema import Snapshot
from baton_serve.router.dashboard.share import RouterShare
from baton_serve.router.dashboard.snapshot import columns, merge
from baton_serve.router.peers.port import PeerRouters

#: Seconds between two samples of the state, and so the least time between two events.
PERIOD_S = 0.5
#: Seconds after which a reader that takes nothing is dropped.
STUCK_S = 10.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class LiveSnapshots:
    """The newest snapshot of all routers.

    Snapshots are made, and the other routers asked, only while a page is watching.
    """

    def __init__(
        self, own: Callable[[], RouterShare], peers: PeerRouters, recorder: HistoryRecorder, lease_duration_ms: int
    ) -> None:
        """``own``: this router's share."""
        self._own = own
        self._recorder = recorder
        self._lease_duration_ms = lease_duration_ms
        self._others = FanOut(peers, recorder)
        self._made_s = -PERIOD_S
        self._body = b""
        #: The newest snapshot as an event, and its number, which grows when a snapshot differs from the previous one.
        self._event = b""
        self._number = 0

    def newest(self) -> tuple[int, bytes]:
        """Number and event of the newest snapshot, which is not older than ``PERIOD_S``."""
        now_s = self._recorder.now_s
        if now_s - self._made_s >= PERIOD_S * 0.9:  # a watcher may come a little early
            self._made_s = now_s
            self._make()
        return self._number, self._event

    def take(self, time_s: float) -> Snapshot:
        """A snapshot of this moment, with the shares that the other routers last sent. ``time_s``: Unix seconds."""
        own, history = self._own(), self._recorder.history
        return merge(
            time_s,
            self._lease_duration_ms,
            self._others.routers(sum(own.counts.values())),
            [own, *self._others.shares()],
            columns(self._others.history.together(history), history.bounds),
        )

    def _make(self) -> None:
        self._others.refresh()
        snapshot = self.take(time.time())
        ended = [replace(one, ended_ms_ago=0.0) for one in snapshot.ended]  # that time goes by is no news
        body = msgspec.json.encode(msgspec.structs.replace(snapshot, time=0.0, ended=ended))
        if body != self._body:
            self._body = body
            self._number += 1
            self._event = b"event: snapshot\ndata: " + msgspec.json.encode(snapshot) + b"\n\n"


class LiveStream(Response):
    """One watcher's stream, until the watcher leaves or ``closing`` returns True because the router stops."""

    def __init__(self, snapshots: LiveSnapshots, closing: Callable[[], bool]) -> None:
        super().__init__()
        self._snapshots = snapshots
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.get_running_loop().create_task(_until_gone(receive))
        try:
            await self._run(send, gone)
        except TimeoutError:
            scope["state"][DROP]()
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _run(self, send: Send, gone: asyncio.Task[None]) -> None:
        """Send events until the client is gone. Raises TimeoutError if it does not read."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sent = 0
        while not (gone.done() or self._closing()):
            number, event = self._snapshots.newest()
            if number != sent:
                async with asyncio.timeout(STUCK_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                sent = number
            await asyncio.wait([gone], timeout=PERIOD_S)
        async with asyncio.timeout(STUCK_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

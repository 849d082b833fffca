"""Requests that are answered by ASGI: uvicorn's cycle runs the application."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from baton_serve.core.net.served.old_clients import without_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp
    from uvicorn._types import ASGI3Application, HTTPScope

    from baton_serve.core.net.served.flow import Flow

_LOGGER: Final = logging.getLogger("uvicorn.error")


class AsgiCycle(RequestResponseCycle):
    """One request and its answer. The connection calls it as it calls an ``HttpCall``."""

    def __init__(
        self,
        app: ASGIApp,
        tasks: set[asyncio.Task[None]],
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: Flow,
        on_response: Callable[[], None],
        *,
        keep_alive: bool,
        waits_for_100: bool,
    ) -> None:
        """``tasks`` has the task that runs ``app``, until it ends. ``on_response`` is called when the answer is
        complete.
        """
        super().__init__(
            scope=scope,
            transport=transport,
            flow=flow,  # type: ignore[arg-type]  # it has all that is used of uvicorn's
            logger=_LOGGER,
            access_logger=_LOGGER,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=waits_for_100,
            keep_alive=keep_alive,
            on_response=on_response,
        )
        self._app = cast("ASGI3Application", app)  # the same, with messages as uvicorn types them
        self._tasks = tasks

    def begin(self) -> None:
        """The requests before it on its connection are answered."""
        app = without_chunks(self._app, self) if self.scope["http_version"] < "1.1" else self._app
        task = asyncio.get_running_loop().create_task(self.run_asgi(app))
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def feed(self, part: bytes) -> None:
        """A piece of the body. No more is read while the application has too much of it."""
        if self.response_complete:
            return
        self.body += part
        if len(self.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    def complete(self) -> None:
        """The body is complete."""
        if not self.response_complete:
            self.more_body = False
            self.message_event.set()

    def wait(self) -> None:
        """More of the body is to come. Nothing is to be done: the application reads it when it wants it."""

    def gone(self) -> None:
        """The connection is lost, or what follows on it is not HTTP."""
        if not self.response_complete:
            self.disconnected = True
        self.message_event.set()


def new_scope(
    method: bytes,
    url: bytes,
    version: str,
    headers: list[tuple[bytes, bytes]],
    scheme: str,
    server: tuple[str, int | None] | None,
    client: tuple[str, int] | None,
) -> HTTPScope:
    """ASGI's scope of a request. Raises httptools.HttpParserInvalidURLError, and UnicodeDecodeError for a path that is
    not ASCII.
    """
    parts = httptools.parse_url(url)
    target = parts.path or b"/"  # ``http://host`` has none
    path = target.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": version,
        "method": method.decode("ascii"),
        "scheme": scheme,
        "path": unquote(path) if "%" in path else path,
        "raw_path": target,
        "query_string": parts.query or b"",
        "root_path": "",
        "headers": headers,
        "server": server,
        "client": client,
        "state": {},
    }

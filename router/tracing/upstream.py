"""Passes the trace on to the workers: the ``Upstream`` port, with a header more."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.tracing.spans import RequestTrace
    from router.upstream.port import Answer, Upstream

#: The trace of the request whose task this is.
CURRENT: ContextVar[RequestTrace | None] = ContextVar("baton_trace", default=None)


class TracedUpstream:
    """Calls to workers name the span they belong to, when they are made for a request that has one."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def request(
        self,
        method: str,
        base_url: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float,
        patience: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Answer:
        """As the port says."""
        trace = CURRENT.get()
        if trace is not None:
            headers = (*headers, *trace.headers())
        return await self._upstream.request(method, base_url, path, headers, body, timeout_s, patience)

    async def close(self) -> None:
        """As the port says."""
        await self._upstream.close()

"""The interface for calls to workers: one request, one answer; closing the answer aborts the request.

After a ConnectError another worker may be tried, for prefill and for decode. An AnswerTooLarge is not the worker's
fault. Cancelling any of the coroutines below closes the connection, from which a worker learns that no client waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from baton_serve.core.net.client.errors import AnswerTooLarge
from baton_serve.core.protocol.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from baton_serve.core.net.client.connection import Pieces


class Answer(Protocol):
    """An answer whose status and headers have come. ``close`` it in every case."""

    status: int
    #: Headers; empty if it has none of that name.
    retry_after: bytes
    content_type: bytes
    metadata: bytes

    async def chunk(self, timeout_s: float | None = None) -> bytes:
        """Returns the bytes that have come since the last call; waits for at least one. Empty: the answer is complete.

        Raises ConnectionLost, also when the answer ends early, and CallTimeout; earlier bytes are returned first.
        """

    async def pass_on(self, take: Callable[[bytes], bool]) -> bool:
        """Call ``take`` with each piece as it comes. Returns True when the answer is complete, and False when ``take``
        has returned False: it takes no more for now. Raises what ``take`` raises, and as ``chunk``.
        """

    async def read(self, limit_bytes: int, timeout_s: float, *, begins: bool = False) -> bytes:
        """The rest of the body. Raises ConnectionLost, AnswerTooLarge and CallTimeout.

        Raises ConnectionLost also for a 200 whose end only the closed connection marks: it may have been cut off.
        ``begins``: of a longer body returns the beginning, which has more than ``limit_bytes``.
        """

    def watch(self, gap_s: float) -> None:
        """From now on, ``chunk`` and ``pass_on`` raise CallTimeout when nothing has come for ``gap_s``, or at most 1.25
        times as long.
        """

    def close(self) -> None:
        """End the use of the answer; closes the connection unless it is complete. Never raises, may be called twice."""


class Upstream(Protocol):
    """Calls workers."""

    async def request(
        self,
        method: str,
        base_url: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | Pieces,
        timeout_s: float,
        patience: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        once: bool = False,
        sending: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a request, and wait at most ``timeout_s`` for status and headers. Raises CallError.

        With ``patience``, waiting continues after ``timeout_s`` until ``patience`` returns. ``headers`` must not have
        line breaks. If a pooled connection breaks before any byte of the answer, the worker had closed it: the request
        is sent once more, on a new connection, unless it must be sent ``once`` only. ``sending`` is called just before
        the request is written to a connection; what it raises ends the call, with nothing written.
        """

    async def close(self) -> None:
        """Close all connections."""


async def read_whole(answer: Answer, limit_bytes: int, timeout_s: float) -> bytes:
    """The body of an answer. Raises CallError, and UpstreamError for a 200 over the limit: any worker's would be so."""
    try:
        return await answer.read(limit_bytes, timeout_s)
    except AnswerTooLarge:
        if answer.status != 200:
            return b""  # the status says enough
        raise too_large(
            "The answer is larger than this router takes of one that is not streamed", limit_bytes
        ) from None


def too_large(what: str, limit_bytes: int) -> UpstreamError:
    """The error for an answer that the router does not keep in memory. ``what``: the beginning of its message."""
    return UpstreamError(f"{what}: {limit_bytes} bytes (max_answer_bytes).", code="answer_too_large")

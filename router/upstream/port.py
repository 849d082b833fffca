"""The port to workers: one request, one answer, closing is aborting.

After a ConnectError another worker may be tried, whatever kind of worker this one is; after an AnswerTooLarge the
worker has done nothing wrong. Cancelling any of the coroutines below closes the connection, which is how a worker
learns that no client waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from core.net.client.errors import AnswerTooLarge
from core.protocol.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence


class Answer(Protocol):
    """An answer whose status and headers are here. ``close`` it in every case."""

    status: int
    retry_after: bytes

    async def chunk(self, timeout_s: float | None = None) -> bytes:
        """The bytes that have come since the last call; waits for some. Empty: the answer is complete.

        Raises ConnectionLost, also when the answer ends early, and CallTimeout; what came before is returned first.
        """

    async def read(self, limit_bytes: int, timeout_s: float) -> bytes:
        """The rest of the body. Raises ConnectionLost, AnswerTooLarge and CallTimeout.

        Raises ConnectionLost also for a 200 that ends only because the connection closed: it may have been cut off.
        """

    def watch(self, gap_s: float) -> None:
        """From now on CallTimeout is raised by whoever waits longer than ``gap_s`` (and a quarter) for a chunk."""

    def close(self) -> None:
        """Done with it. Closes the connection unless the answer is complete. Never raises, may be called twice."""


class Upstream(Protocol):
    """Calls workers."""

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
        """Send, and wait at most ``timeout_s`` for status and headers. Raises CallError.

        When the time is up and there is ``patience``, it goes on waiting until that returns.
        ``headers`` must not contain line breaks. A kept connection that the worker had closed is replaced once,
        unnoticed: one that breaks at once, when nothing of an answer has come.
        """

    async def close(self) -> None:
        """Close all connections."""


async def read_whole(answer: Answer, limit_bytes: int, timeout_s: float) -> bytes:
    """The body of an answer. Raises CallError, and UpstreamError for a 200 over the limit, as any worker's would be."""
    try:
        return await answer.read(limit_bytes, timeout_s)
    except AnswerTooLarge:
        if answer.status != 200:
            return b""  # the status says enough
        raise UpstreamError(
            f"The answer is larger than this router takes of one that is not streamed: {limit_bytes} bytes "
            "(max_answer_bytes).",
            code="answer_too_large",
        ) from None

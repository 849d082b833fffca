"""Answers of workers that are kept in memory as a whole."""

from __future__ import annotations

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.errors import AnswerTooLarge
from baton_serve.core.protocol.errors import UpstreamError


async def read_whole(answer: HttpAnswer, limit_bytes: int, timeout_s: float) -> bytes:
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

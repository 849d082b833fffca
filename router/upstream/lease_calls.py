"""One call to P about leases on its blocks; see ``core.protocol.leases_at_p``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from baton_serve.core.net.client.errors import CallError
from baton_serve.core.protocol.leases_at_p import LeaseIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton_serve.core.protocol.hello import WorkerIdentity
    from baton_serve.router.upstream.internal_calls import InternalCalls

AnswerT = TypeVar("AnswerT")


async def ask_about(
    calls: InternalCalls,
    worker: WorkerIdentity,
    path: str,
    lease_ids: list[str],
    timeout_s: float,
    decoder: msgspec.json.Decoder[AnswerT],
) -> AnswerT | None:
    """P's answer; None if there is none, or another one than ``decoder`` reads. ``timeout_s`` is for all of it."""
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await calls.post(worker, path, timeout_s, msgspec.json.encode(LeaseIds(lease_ids)))
        return decoder.decode(answer) if status == 200 else None
    except (CallError, TimeoutError, ValueError, RecursionError):
        return None


def batches(lease_ids: Sequence[str], size: int) -> Iterator[list[str]]:
    """The leases, at most ``size`` of them at a time."""
    return (list(lease_ids[start : start + size]) for start in range(0, len(lease_ids), size))

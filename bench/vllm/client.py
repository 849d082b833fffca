"""One client: it asks, reads the stream, notes when events come, and leaves when it was to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton_serve.baton.demo import MODEL_NAME
from bench.client import AnswerError, Stream

if TYPE_CHECKING:
    from bench.client import Client
    from bench.vllm.traffic import Asked

#: A request that has not ended after this many seconds is lost.
HUNG_AFTER_S = 120.0


@dataclass
class Seen(Stream):
    """What one client saw."""

    asked: Asked = field(kw_only=True)
    #: The client has left, as it was to.
    left: bool = False
    #: Why there is no whole answer, when the client did not leave.
    error: str = ""


async def ask(client: Client, url: str, asked: Asked) -> Seen:
    """Ask, and read until the request has ended in whatever way."""
    seen = Seen(asked=asked)
    body = {"model": MODEL_NAME, **asked.body}
    try:
        async with asyncio.timeout(HUNG_AFTER_S), asyncio.timeout(asked.leaves_after_s) as leaving:
            await client.read(url, body, seen, stop_after=asked.leaves_after_events)
        seen.left = not seen.complete
    except TimeoutError:
        seen.left = leaving.expired()
        seen.error = "" if seen.left else "lost"
    except AnswerError as error:
        seen.error = str(error)
    return seen

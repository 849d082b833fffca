"""One client: it asks, reads the stream, notes when events come, and leaves when it was to."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from baton_serve.baton.demo import MODEL_NAME

if TYPE_CHECKING:
    from bench.vllm.traffic import Asked

PATH = "/v1/completions"
#: A request that has not ended after this many seconds is lost.
HUNG_AFTER_S = 120.0


@dataclass
class Seen:
    """What one client saw. Times are seconds of ``time.perf_counter``."""

    asked: Asked
    sent_s: float = 0.0
    ended_s: float = 0.0
    #: When each event with text came.
    events_s: list[float] = field(default_factory=list)
    text: str = ""
    #: The whole answer came, with its end mark.
    complete: bool = False
    #: The client has left, as it was to.
    left: bool = False
    #: Why there is no whole answer, when the client did not leave.
    error: str = ""


class _LeftError(Exception):
    """The client leaves."""


async def ask(http: httpx.AsyncClient, url: str, asked: Asked) -> Seen:
    """Ask, and read until the request has ended in whatever way."""
    seen = Seen(asked, time.perf_counter())
    try:
        async with asyncio.timeout(HUNG_AFTER_S), asyncio.timeout(asked.leaves_after_s) as leaving:
            await _read(http, url, seen)
    except _LeftError:
        seen.left = True
    except TimeoutError:
        seen.left = leaving.expired()
        seen.error = "" if seen.left else "lost"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        seen.error = seen.error or repr(error)
    seen.ended_s = time.perf_counter()
    return seen


async def _read(http: httpx.AsyncClient, url: str, seen: Seen) -> None:
    body = {"model": MODEL_NAME, **seen.asked.body, "stream": True}
    async with http.stream("POST", url + PATH, json=body) as response:
        if response.status_code != httpx.codes.OK:
            seen.error = f"{response.status_code} {(await response.aread())[:300]!r}"
            return
        async for line in response.aiter_lines():
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                seen.complete = not seen.error
            elif data and not line.startswith(":"):
                _take(json.loads(data), seen)
    if not seen.complete:
        seen.error = seen.error or "the stream ended without its end mark"


def _take(event: dict[str, Any], seen: Seen) -> None:
    """Take one event. Raises _LeftError when the client has seen enough, KeyError for what is no event."""
    if "error" in event:
        seen.error = str(event["error"])[:300]
        return
    text = "".join(choice["text"] for choice in event["choices"])
    if text:
        seen.text += text
        seen.events_s.append(time.perf_counter())
        if seen.asked.leaves_after_events == len(seen.events_s):
            raise _LeftError

"""The client of the benchmarks: it asks servers of the OpenAI API, and notes when each part of an answer came.

It is the router's own HTTP client with a reader of events. A general client takes milliseconds of CPU for a request,
which would be part of what is measured. Connections are kept, and each has one request at a time. Two loads have
clients of their own, for thousands of connections: ``router/native/load`` and ``held/stubs/clients``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import msgspec
import orjson

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.net.client.http_client import HttpClient

TEXT = "/v1/completions"
CONNECT_TIMEOUT_S = 5.0
#: Longest wait for an answer, or for the next piece of one, seconds.
ANSWER_TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 2**24
OK = 200


class AnswerError(Exception):
    """A server did not answer as it should. The message is one line."""


class _Choice(msgspec.Struct):
    text: str = ""


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass
class Stream:
    """What has come of a stream so far. Times are seconds of ``time.perf_counter``."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    #: When each event with text came.
    pieces_s: list[float] = field(default_factory=list)
    text: str = ""
    #: Whether the whole answer came, with its end mark.
    complete: bool = False

    def until_s(self, number: int) -> float:
        """Seconds until the piece of text of that number came."""
        return self.pieces_s[number] - self.sent_s

    def gaps_s(self, first: int) -> list[float]:
        """Seconds between pieces of text, from the one of that number on."""
        return [later - earlier for earlier, later in pairwise(self.pieces_s[first:])]

    def take(self, event: bytes, now_s: float) -> None:
        """Take an event that came now. Raises AnswerError for an error, and for what is no event."""
        data = next((line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")), b"")
        if data == b"[DONE]":
            self.complete = True
        elif data:
            try:
                found = _decode(data)
            except msgspec.MsgspecError as error:
                raise AnswerError(f"no event: {error}") from None
            if found.error is not None:
                raise AnswerError(f"an error in a stream: {str(found.error)[:300]}")
            if text := "".join(one.text for one in found.choices):
                self.text += text
                self.pieces_s.append(now_s)


class Client:
    """Asks any number of servers, with as many requests at a time as there are calls. Its methods raise AnswerError.

    ``timeout_s`` is the longest wait for an answer, or for the next piece of one. A call that is cancelled closes its
    connection.
    """

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._http = HttpClient(CONNECT_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, url: str, body: Mapping[str, object]) -> dict[str, Any]:
        """The whole answer."""
        async with self._answer(url, orjson.dumps(body)) as answer:
            whole: dict[str, Any] = orjson.loads(await answer.read(MAX_ANSWER_BYTES, self._timeout_s))
        return whole

    async def stream(self, url: str, body: Mapping[str, object]) -> Stream:
        """Read a stream to its end, which it has with its end mark."""
        stream = Stream()
        await self.read(url, body, stream)
        return stream

    async def read(self, url: str, body: Mapping[str, object], into: Stream, *, stop_after: int | None = None) -> None:
        """Note what comes of a stream in ``into``, to its end, or until that many pieces of text have come."""
        raw = orjson.dumps({**body, "stream": True})
        into.sent_s = time.perf_counter()
        try:
            async with self._answer(url, raw) as answer:
                await self._take(answer, into, stop_after)
        finally:
            into.ended_s = time.perf_counter()

    async def _take(self, answer: HttpAnswer, into: Stream, stop_after: int | None) -> None:
        rest = b""
        answer.watch(self._timeout_s)
        while data := await answer.chunk():
            now_s = time.perf_counter()
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                into.take(event, now_s)
                if len(into.pieces_s) == stop_after:
                    return
        if not into.complete:
            raise AnswerError("the stream ended without its end mark")

    @asynccontextmanager
    async def _answer(self, url: str, body: bytes) -> AsyncIterator[HttpAnswer]:
        """An answer whose status is good. What is not read of it is cut off."""
        try:
            answer = await self._http.request("POST", url, TEXT, (), body, self._timeout_s)
            try:
                if answer.status != OK:
                    data = await answer.read(MAX_ANSWER_BYTES, self._timeout_s)
                    raise AnswerError(f"{url} answers {answer.status} {data[:300]!r}")
                yield answer
            finally:
                answer.close()
        except CallError as error:
            raise AnswerError(f"{url}: {error}") from None

"""One request to a completions endpoint, and when the tokens of its answer came."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from baton_serve.core.net.client.http_client import HttpClient

PATH = "/v1/completions"
#: Longest wait for an answer, or for the next piece of one, seconds.
ANSWER_TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 2**24
_HEADERS = (("content-type", "application/json"),)


class AnswerError(Exception):
    """A server did not answer as it should. The message is one line."""


@dataclass(frozen=True)
class Stream:
    """When a request was sent and each piece of text of its stream came, seconds of ``time.perf_counter``."""

    sent_s: float
    pieces_s: list[float]
    text: str

    def until_s(self, number: int) -> float:
        """Seconds until the piece of that number came."""
        return self.pieces_s[number] - self.sent_s

    def gaps_s(self, first: int) -> list[float]:
        """Seconds between pieces, from the one of that number on."""
        return [later - earlier for earlier, later in pairwise(self.pieces_s[first:])]


async def ask(http: HttpClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer. Raises AnswerError, and CallError."""
    answer = await http.request("POST", url, PATH, _HEADERS, orjson.dumps(body), ANSWER_TIMEOUT_S)
    data = await answer.read(MAX_ANSWER_BYTES, ANSWER_TIMEOUT_S)
    if answer.status != 200:
        raise AnswerError(f"{url} answers {answer.status}: {data[:300]!r}")
    whole: dict[str, Any] = orjson.loads(data)
    return whole


async def stream(http: HttpClient, url: str, body: dict[str, Any]) -> Stream:
    """Read a stream to its end. Raises AnswerError, and CallError."""
    sent_s = time.perf_counter()
    raw = orjson.dumps({**body, "stream": True})
    answer = await http.request("POST", url, PATH, _HEADERS, raw, ANSWER_TIMEOUT_S)
    pieces_s: list[float] = []
    texts: list[str] = []
    rest = b""
    while data := await answer.chunk(ANSWER_TIMEOUT_S):
        now_s = time.perf_counter()
        *events, rest = (rest + data).split(b"\n\n")
        for text in filter(None, map(_text_of, events)):
            pieces_s.append(now_s)
            texts.append(text)
    if answer.status != 200 or not pieces_s:
        raise AnswerError(f"{url} answers {answer.status}, {len(pieces_s)} pieces: {rest[:300]!r}")
    return Stream(sent_s, pieces_s, "".join(texts))


def _text_of(event: bytes) -> str:
    """The text of an event; empty if it has none. Raises AnswerError for an error."""
    data = next((line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")), b"")
    if not data or data == b"[DONE]":
        return ""
    found = orjson.loads(data)
    if "error" in found:
        raise AnswerError(f"an error in a stream: {str(found['error'])[:300]}")
    return "".join(choice["text"] for choice in found["choices"])

"""The client's side of one request: send it, read the answer in the client's manner, and note what comes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.torture.clients.features import singles
from baton_serve.baton.torture.clients.one_stream import OneStream
from baton_serve.baton.torture.records import AnswerError, ClientAnswer, Ending, TokenLogprob

if TYPE_CHECKING:
    from baton_serve.baton.torture.records import Attempt, Question

#: A request that has not ended after this many seconds is taken for lost.
HUNG_AFTER_S = 120.0
#: vLLM leaves the details out unless it is asked for them at its start.
NO_DETAILS = {"cached_tokens": 0}


@dataclass(frozen=True)
class Manner:
    """How a client reads its answer."""

    stream: bool = True
    #: The client leaves after this many events of a stream, or this many seconds if the answer is not streamed. None:
    #: it stays.
    leaves_after: float | None = None
    #: Seconds between two events.
    slow_s: float = 0.0
    #: Seconds for which the client stops reading after the third event.
    stalls_s: float = 0.0


class _LeftError(Exception):
    """The client leaves, as its manner demands."""


def make_client() -> httpx.AsyncClient:
    """A client with any number of connections, one for each request: a kept one might lead to a router that is dead.

    The client takes bytes from a connection only when they are read here, so that a router soon notices a reader that
    stalls.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)


async def ask_once(http: httpx.AsyncClient, url: str, question: Question, manner: Manner, attempt: Attempt) -> None:
    """Ask, read until the request has ended in whatever way, and fill in ``attempt``.

    Raises nothing but CancelledError.
    """
    leaves_s = None if manner.stream else manner.leaves_after
    try:
        async with asyncio.timeout(HUNG_AFTER_S), asyncio.timeout(leaves_s) as leaving:
            await _ask(http, url, question, manner, attempt)
    except _LeftError:
        attempt.ending = Ending.LEFT
    except TimeoutError:
        attempt.ending = Ending.LEFT if leaving.expired() else Ending.HUNG
    except AnswerError as error:
        attempt.ending, attempt.error = Ending.ERROR, str(error)
    except (httpx.HTTPError, OSError):
        attempt.ending = Ending.BROKEN
    attempt.ended_s = time.monotonic()


async def _ask(http: httpx.AsyncClient, url: str, question: Question, manner: Manner, attempt: Attempt) -> None:
    body = {"model": MODEL_NAME, **question.body, "stream": manner.stream}
    if manner.stream:
        body["stream_options"] = {"include_usage": True}
    async with http.stream("POST", f"{url}{question.path}", json=body) as response:
        attempt.status = response.status_code
        attempt.request_id = response.headers.get("x-request-id", "")
        if attempt.status == httpx.codes.OK and manner.stream:
            num_choices = sum(1 for _ in singles(question))
            await _read_stream(response, OneStream(chat=question.chat, num_choices=num_choices), manner, attempt)
            return
        whole = _parse(await response.aread())
        if attempt.status == httpx.codes.OK:
            take(attempt.answer, whole)
            attempt.ending = Ending.DONE
        else:
            attempt.ending, attempt.error = Ending.ERROR, whole.get("error", whole)


async def _read_stream(response: httpx.Response, stream: OneStream, manner: Manner, attempt: Attempt) -> None:
    """Read a stream, split at newlines only: httpx's ``aiter_lines`` splits at every line end of Unicode, which JSON
    may hold.
    """
    num_events, rest = 0, b""
    async for data in response.aiter_raw():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if _take_line(line, stream, attempt):
                num_events += 1
                await _behave(manner, num_events)
    _take_line(rest, stream, attempt)
    if attempt.ending is Ending.HUNG:
        attempt.ending = Ending.BROKEN  # the connection closed in order, but before the stream's end mark


def _take_line(line: bytes, stream: OneStream, attempt: Attempt) -> bool:
    """Handle one line; returns whether it is an event of the answer. Raises AnswerError."""
    data = line.strip().removeprefix(b"data:").strip()
    if not data:
        return False
    if attempt.ending is Ending.DONE or (attempt.error is not None and data != b"[DONE]"):
        raise AnswerError(f"after the end of the stream came {data[:80]!r}")
    if data == b"[DONE]":
        if attempt.error is None:
            stream.end()
            attempt.ending = Ending.DONE
        return False
    event = _parse(data)
    if "error" in event:
        attempt.ending, attempt.error = Ending.ERROR, event["error"]
        return False
    stream.take(event)
    take(attempt.answer, event)
    return True


async def _behave(manner: Manner, num_events: int) -> None:
    if manner.leaves_after is not None and num_events >= manner.leaves_after:
        raise _LeftError
    if manner.stalls_s and num_events == 3:
        await asyncio.sleep(manner.stalls_s)
    if manner.slow_s:
        await asyncio.sleep(manner.slow_s)


def take(answer: ClientAnswer, body: dict[str, Any]) -> None:
    """Add an event of a stream, or a whole body, to the client's answer. Raises AnswerError."""
    try:
        for choice in body["choices"]:
            part = choice.get("delta", choice.get("message", choice))
            own = answer.choice(choice.get("index", 0))
            own.text += (part.get("content", part.get("text")) or "") + _calls(part)
            own.finish_reason = choice["finish_reason"] or own.finish_reason
            own.logprobs += _logprobs(choice.get("logprobs") or {})
            own.prompt_logprobs += map(_of_prompt, choice.get("prompt_logprobs") or ())
        if usage := body.get("usage"):
            answer.num_tokens = _num_tokens(usage)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise AnswerError(f"not an answer: {error!r} in {str(body)[:200]}") from error


def _calls(part: dict[str, Any]) -> str:
    """The calls of a message, or the parts of calls in an event, as text."""
    calls = (call["function"] for call in part.get("tool_calls") or ())
    return "".join(f"[{call['name']}]{call['arguments']}" if "name" in call else call["arguments"] for call in calls)


def _num_tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """The numbers of tokens of the prompt and of the completion. Raises AnswerError.

    The number of cached tokens depends on which P had the prompt and on what that P had cached: any possible number is
    right.
    """
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = (usage.get("prompt_tokens_details") or NO_DETAILS)["cached_tokens"]
    if usage["total_tokens"] != prompt + completion or not 0 <= cached <= prompt:
        raise AnswerError(f"a usage that does not add up: {usage}")
    return prompt, completion


def _logprobs(given: dict[str, Any]) -> list[TokenLogprob]:
    if given.get("content") is not None:
        return [TokenLogprob(one["token"], one["logprob"], None, _chat_top(one)) for one in given["content"]]
    if given.get("tokens") is None:
        return []
    four = zip(given["tokens"], given["token_logprobs"], given["text_offset"], given["top_logprobs"], strict=True)
    return [TokenLogprob(token, logprob, offset, top or {}) for token, logprob, offset, top in four]


def _of_prompt(given: dict[str, dict[str, Any]] | None) -> TokenLogprob:
    """The logprobs in the place of a token of the prompt, by the ids of tokens: its own comes first."""
    if given is None:
        return TokenLogprob("", None)
    logprobs = {token: one["logprob"] for token, one in given.items()}
    return TokenLogprob(own := next(iter(given)), logprobs[own], None, logprobs)


def _chat_top(one: dict[str, Any]) -> dict[str, float]:
    """Log probabilities by the tokens' bytes: tokens that are parts of characters have the same text."""
    return {bytes(other["bytes"]).hex(): other["logprob"] for other in one["top_logprobs"]}


def _parse(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise AnswerError(f"not JSON: {data[:200]!r}") from error
    if not isinstance(body, dict):
        raise AnswerError(f"not an object: {data[:200]!r}")
    return body

"""Clients that stream with OpenAI's library. All of them get the same answer."""

from __future__ import annotations

import time
from collections import Counter
from threading import Event
from typing import TYPE_CHECKING, Any

import openai

from deploy.drill.errors import DrillError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future, ThreadPoolExecutor

TIMEOUT_S = 60.0
#: Tokens of a stream: enough for a few seconds, so that it is under way when something dies.
MAX_TOKENS = 2400
QUESTION: Any = [{"role": "user", "content": "What is a lease?"}]

#: Outcomes: the whole answer; the connection broke; the text is not that of the answer. Others are codes of errors.
EXACT, LOST, DIFFERS = "exact", "lost", "differs"


class Stream:
    """One stream. All have the same question and seed, so that its text is known."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun = Event()  # its first token is here, or it has ended without one
        self.request_id = ""  # known when it has begun
        self.text = ""
        self.ended_s = 0.0  # time.monotonic()

    def run(self, expected: str) -> str:
        """Stream to the end, and return the outcome."""
        error: Exception | None = None
        try:
            self._read()
        except openai.OpenAIError as raised:
            error = raised
        finally:
            self.ended_s = time.monotonic()
            self.begun.set()
        return outcome(self.text, error, expected)

    def _read(self) -> None:
        """Read the stream. Raises openai.OpenAIError, also when it breaks off."""
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
            chunks = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=QUESTION,
                max_tokens=MAX_TOKENS,
                seed=1,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in chunks:
                self.request_id = chunk.id.rpartition("-")[2]
                content = chunk.choices[0].delta.content if chunk.choices else None
                if content:
                    self.text += content
                    self.begun.set()


def outcome(text: str, error: Exception | None, expected: str) -> str:
    """What a client got, in one word. A stream that failed must not have had a wrong token before."""
    if not expected.startswith(text) or (error is None and text != expected):
        return DIFFERS
    if error is None:
        return EXACT
    if isinstance(error, openai.APITimeoutError):
        return "timeout"
    if isinstance(error, openai.APIConnectionError):
        return LOST
    return str(getattr(error, "code", None) or type(error).__name__)


def begin(pool: ThreadPoolExecutor, urls: Iterable[str], expected: str) -> tuple[list[Stream], list[Future[str]]]:
    """Begin a stream at each URL and wait for its first token; the streams and their outcomes. Raises DrillError."""
    streams = [Stream(url) for url in urls]
    futures = [pool.submit(stream.run, expected) for stream in streams]
    for stream in streams:
        if not stream.begun.wait(TIMEOUT_S) or not stream.text:
            raise DrillError(f"{stream.url} sends no first token")
    return streams, futures


def gather(futures: Iterable[Future[str]]) -> Counter[str]:
    """How many streams ended in each way."""
    return Counter(future.result() for future in futures)


def demand(outcomes: Counter[str], expected: dict[str, int], when: str) -> None:
    """Raises DrillError unless the streams ended exactly so."""
    if outcomes != expected:
        raise DrillError(f"{when}: {told(outcomes)}; expected {told(Counter(expected))}")


def told(outcomes: Counter[str]) -> str:
    """The outcomes as text."""
    return ", ".join(f"{number} {each}" for each, number in sorted(outcomes.items()) if number)

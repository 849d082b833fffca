"""Whether a router asks P and D as it says, and answers with what they said."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import httpx

from bench.router.harness.engines import Engines

NUM_REQUESTS = 16
NUM_TOKENS = 4
PATHS = ("/v1/chat/completions", "/v1/completions")


class Flow(StrEnum):
    """What a router does with a request."""

    #: P first, then D with the parameters that P has answered with.
    P_THEN_D = "P, then D"
    #: P and D at the same time, with a room in which they meet: SGLang's way.
    P_AND_D = "P and D at once"
    #: One hop, to D.
    ONE_HOP = "one hop, to D"

    @property
    def waits_for_p(self) -> bool:
        """Whether the first token comes after P's answer."""
        return self is Flow.P_THEN_D

    def legs(self, num_requests: int) -> tuple[int, int, int, int]:
        """Questions to engines that so many requests take, in the order of ``Counters``."""
        return {
            Flow.P_THEN_D: (num_requests, num_requests, 0, 0),
            Flow.P_AND_D: (0, num_requests, 0, 2 * num_requests),
            Flow.ONE_HOP: (0, 0, num_requests, 0),
        }[self]


def complaints(flow: Flow, port: int, engines: Engines) -> list[str]:
    """What is wrong with a router's answers, and with the questions to engines that they took."""
    found, before = [], engines.counters()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10.0) as http:
        for number in range(NUM_REQUESTS):
            path, stream = PATHS[number % 2], number % 4 < 2
            answer = http.post(path, json=question(path, stream))
            right = answer.status_code == httpx.codes.OK and is_right(path, stream, answer.text)
            found += [] if right else [f"{path}: {answer.status_code} {answer.text[:200]!r}"]
    legs = engines.counters().since(before)
    if legs != flow.legs(NUM_REQUESTS):
        found.append(f"{NUM_REQUESTS} requests asked P, D with and without blocks, and both at once {legs} times")
    return found


def question(path: str, stream: bool, num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    """The body of a request."""
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return {"model": "stub", **prompt, "max_tokens": num_tokens, "stream": stream}


def is_right(path: str, stream: bool, body: str) -> bool:
    """Whether an answer has all tokens, and a stream its role and its end mark."""
    if not stream:
        return f'"completion_tokens":{NUM_TOKENS}' in body.replace(" ", "") and body.count(" tok") == NUM_TOKENS
    events = [line for line in body.splitlines() if line.startswith("data: ")]
    return len(events) == NUM_TOKENS + ("chat" in path) + 1 and events[-1] == "data: [DONE]"

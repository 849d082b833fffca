"""Makes one answer of the answers of several choices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from baton_serve.core.protocol.choice import Choice
from baton_serve.core.protocol.errors import UpstreamError
from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.router.upstream.events import DATA, DONE_EVENT, END, data_of, with_data

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DONE = b"[DONE]"
_NOT_UNDERSTOOD = "A worker's answer was not understood."


def parsed(body: bytes) -> dict[str, Any]:
    """A worker's answer to one choice. Raises UpstreamError."""
    try:
        answer: dict[str, Any] = orjson.loads(body)
        if isinstance(answer["choices"][0], dict):
            return answer
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        pass
    raise UpstreamError(_NOT_UNDERSTOOD)


def merged(answers: Sequence[dict[str, Any]], choices: Choices, *, shows_logprobs: bool) -> bytes:
    """The answer with all choices. ``answers`` are in the order of their indices.

    ``shows_logprobs``: the client wants the logprobs by which the best of ``best_of`` are picked.
    """
    shown: list[dict[str, Any]] = []
    for begin in range(0, len(answers), choices.best_of):
        of_prompt = answers[begin : begin + choices.best_of]
        if choices.best_of > choices.n:
            of_prompt = sorted(of_prompt, key=_mean_logprob, reverse=True)[: choices.n]
        shown += [answer["choices"][0] for answer in of_prompt]
    for index, choice in enumerate(shown):
        choice["index"] = index
        if choices.best_of > choices.n and not shows_logprobs:
            choice["logprobs"] = None
    usage = merged_usage([answer.get("usage") for answer in answers], choices.best_of)
    return orjson.dumps({**answers[0], "choices": shown, "usage": usage})


def _mean_logprob(answer: dict[str, Any]) -> float:
    """The mean logprob of a completion's tokens; one without tokens is the least likely."""
    logprobs = answer["choices"][0].get("logprobs")
    found = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(found, list):
        found = []
    if found and found[0] is None:  # it begins with its prompt, whose first token nothing predicts
        found = found[_count(answer.get("usage") or {}, "prompt_tokens") :]
    known = [number for number in found if isinstance(number, int | float)]
    return sum(known) / len(known) if known else float("-inf")


def merged_usage(usages: Sequence[Any], num_per_prompt: int) -> dict[str, Any] | None:
    """The usage of all choices, in which each prompt counts once; None if no worker has said any."""
    known = [usage if isinstance(usage, dict) else {} for usage in usages]
    if not any(known):
        return None
    total: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
    leads = known[::num_per_prompt]
    total["prompt_tokens"] = sum(_count(one, "prompt_tokens") for one in leads)
    total["completion_tokens"] = sum(_count(one, "completion_tokens") for one in known)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    for details, name, counted in (
        ("prompt_tokens_details", "cached_tokens", leads),
        ("completion_tokens_details", "reasoning_tokens", known),
    ):
        found = [usage[details] for usage in counted if isinstance(usage.get(details), dict)]
        if found:
            total[details] = {name: sum(_count(one, name) for one in found)}
    return total


def _count(usage: dict[str, Any], name: str) -> int:
    number = usage.get(name)
    return number if type(number) is int else 0


class ChoiceEvents:
    """Filters one choice's stream: takes out the usage and the end, which the client gets once for all choices."""

    __slots__ = ("_choice", "_prefix", "usage")

    def __init__(self, choice: Choice, prefix: str) -> None:
        """``prefix``: of the answer's id."""
        self._choice = choice
        self._prefix = prefix
        #: The event with the usage, parsed; None: it has not come.
        self.usage: dict[str, Any] | None = None

    def take(self, events: bytes, *, named: bool) -> bytes:
        """Whole events for the client. ``named``: the worker writes the choice's index and id into its events.

        Raises UpstreamError.
        """
        if named and _DONE not in events and b'"choices":[]' not in events:  # nearly always
            return events
        kept = [self._take_one(event, named=named) for event in events.split(END)[:-1]]
        return b"".join(event + END for event in kept if event)

    def _take_one(self, event: bytes, *, named: bool) -> bytes:
        data = data_of(event)
        if data is None or data.strip() == _DONE:
            return with_data(event, b"")
        chunk = parsed_event(data)
        if chunk is None:
            return event
        if chunk.get("choices") == [] and "usage" in chunk:
            self.usage = chunk
            return with_data(event, b"")
        if named or "choices" not in chunk:  # an error, which is about no choice
            return event
        return with_data(event, orjson.dumps(self._renamed(chunk)))

    def _renamed(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Raises UpstreamError."""
        choices = chunk["choices"]
        if not (isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices)):
            raise UpstreamError(_NOT_UNDERSTOOD)
        for choice in choices:
            choice["index"] = self._choice.index
        return {**chunk, "id": self._prefix + self._choice.answer_id, "created": self._choice.created}


def parsed_event(data: bytes) -> dict[str, Any] | None:
    """The object of an event; None if it has none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def last_events(usages: Sequence[dict[str, Any] | None], num_per_prompt: int, *, shows_usage: bool) -> bytes:
    """The end of the stream of all choices. ``usages``: the event with the usage of each choice."""
    first = next(filter(None, usages), None)
    if not shows_usage or first is None:
        return DONE_EVENT
    usage = merged_usage([event and event.get("usage") for event in usages], num_per_prompt)
    return DATA + b" " + orjson.dumps({**first, "usage": usage}) + END + DONE_EVENT

"""Text may be held back for long; the logprobs of its tokens are not: no event grows with what a client asks."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.text.transcript import MAX_WAITING
from tests.kits.worker.front import EOS, chat, completion, front, text_of, tokens_of
from tests.kits.worker.streams import Answer, Event, ask

HELD = "zyxwvu" * 12
MUTE = 0
BEGIN, END = tokens_of("ab"), tokens_of("!cd")
SCRIPT = [*BEGIN, *tokens_of(HELD), *END, EOS]
#: Text and why it ended, of ``SCRIPT`` unless there is another one.
CASES = {
    "shown after all": ({"stop": HELD + "?"}, SCRIPT, ("ab" + HELD + "!cd", "stop")),
    "found": ({"stop": HELD + "!"}, SCRIPT, ("ab", "stop")),
    "cut off": ({"stop": HELD + "?", "max_tokens": 50}, SCRIPT, (text_of(SCRIPT[:50]), "length")),
    "never text": ({}, [*BEGIN, *[MUTE] * 50, *END, EOS], ("ab!cd", "stop")),
    "to the end": ({"stop": HELD + "?"}, SCRIPT[: -len(END) - 1], ("ab" + HELD, "length")),
}


def request(path: str, wish: dict[str, Any]) -> dict[str, Any]:
    wish = {"max_tokens": 150, "seed": 1, **wish}
    return chat(logprobs=True, top_logprobs=2, **wish) if "chat" in path else completion(logprobs=2, **wish)


def num_logprobs(event: Event) -> int:
    """Of how many tokens."""
    choices = event.chunk["choices"]
    shown = (choices[0]["logprobs"] if choices else None) or {}
    return len(shown.get("content") or shown.get("tokens") or ())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("case", CASES)
async def test_no_event_has_many_and_none_is_lost(path: str, case: str) -> None:
    wish, script, (text, reason) = CASES[case]
    async with front(script) as worker:
        body = request(path, wish)
        whole = Answer().see_whole((await worker.http.post(path, json=body)).json())
        events = await ask(worker, path, body)
    got = Answer().see(*events)
    assert (got.text, got.finish_reason) == (text, reason)
    assert (got.text, got.finish_reason, got.logprobs) == (whole.text, whole.finish_reason, whole.logprobs)
    assert len(got.logprobs) > 2 * MAX_WAITING
    assert max(map(num_logprobs, events)) == MAX_WAITING
    named = [event for event in events if event.token_ids is not None]
    assert [num_logprobs(event) for event in named] == [len(event.token_ids or ()) for event in named]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_without_logprobs_held_text_is_no_event(path: str) -> None:
    async with front(SCRIPT) as worker:
        body = {**request(path, {"stop": HELD + "?"}), "logprobs": None, "top_logprobs": None}
        events = await ask(worker, path, body)
    assert all(text for text in (Answer().see(event).text for event in events if event.token_ids is not None))

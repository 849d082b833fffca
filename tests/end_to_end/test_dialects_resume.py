"""A response's and a message's stream whose D is killed: the client sees what it would have seen anyway."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.kits.strict_types import message_events, response_events
from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import Count, Counts, lines, resumed

pytestmark = pytest.mark.slow

#: Lines that each client has before D dies, two for each event.
NUM_BEFORE = 40
#: So long that no answer has ended by then.
LONG: dict[str, Any] = {
    "type": "object",
    "properties": {"said": {"type": "string", "minLength": 500, "maxLength": 600}},
    "required": ["said"],
    "additionalProperties": False,
}
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 1, "seed": 5, "stream": True}
#: A call whose arguments come in fragments, and a text.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        **ASKED,
        "input": "The baton",
        "tools": [{"type": "function", "name": "say", "parameters": LONG}],
        "tool_choice": {"type": "function", "name": "say"},
    },
    "/v1/messages": {
        **ASKED,
        "messages": [{"role": "user", "content": "The baton"}],
        "max_tokens": 900,
        "output_config": {"format": {"type": "json_schema", "schema": LONG}},
    },
}


async def stream(stack: Stack, path: str, count: Count | None = None) -> list[Any]:
    """The events, strictly validated. They are counted as they come."""
    found = await lines(stack, path, BODIES[path], count or Counts(1).of[0])
    text = "\n".join(f"\n{line}" if line.startswith("event: ") else line for line in found)
    return response_events(text) if path == "/v1/responses" else message_events(text)


def gist(events: list[Any]) -> tuple[str, list[str], int]:
    """What must not differ between two runs: what was said, the types of the events, and the count of tokens."""
    deltas = [event.delta for event in events if event.type.endswith("_delta") or event.type.endswith(".delta")]
    said = "".join(each if isinstance(each, str) else getattr(each, "text", "") for each in deltas)
    kinds = [event.type for event in events]
    usage = events[-1].response.usage if kinds[-1] == "response.completed" else events[-2].usage
    return said, sorted(set(kinds), key=kinds.index), usage.output_tokens


async def test_streams_go_on_when_their_d_is_killed(stack: Stack) -> None:
    quiet = [gist(await stream(stack, path)) for path in BODIES]
    assert all(len(said) > 500 for said, _, _ in quiet)
    await stack.start_worker("victim", {"role": "decode"})
    await stack.routable(3)
    other = f"{stack.router.url}/admin/workers/{stack.workers['decode-0'].worker_id}"
    await stack.http.post(f"{other}/drain")  # so that both streams are the victim's
    before = await resumed(stack)
    counts = Counts(len(BODIES))
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(stream(stack, *one)) for one in zip(BODIES, counts.of, strict=True)]
        await counts.more(NUM_BEFORE)
        await stack.http.post(f"{other}/resume")
        os.kill(stack.workers.pop("victim").pid, signal.SIGKILL)
    assert [gist(each.result()) for each in streams] == quiet
    assert await resumed(stack) == before + len(BODIES)
    await stack.until_gone()
    await stack.until_idle()

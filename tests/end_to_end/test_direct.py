"""A request that skips P gets the answer it would have had: tokens, logprobs, usage."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.kits.whole.stack import MODEL, Stack

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CHAT = {
    "messages": [{"role": "user", "content": "What is a lease?"}],
    "max_tokens": 12,
    "logprobs": True,
    "top_logprobs": 2,
}
COMPLETION = {"prompt": "A lease is", "max_tokens": 12, "logprobs": 2}


async def ask(stack: Stack, router_url: str, path: str, body: dict[str, Any]) -> Any:
    """The answer without what differs from request to request, a stream as a list of its choices and usage."""
    response = await stack.http.post(f"{router_url}{path}", json={"model": MODEL, "seed": 5, **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        answer = response.json()
        return answer["choices"], _counts(answer["usage"])
    events = [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: {")]
    tokens = [one for event in events for choice in event["choices"] for one in _logprobs(choice)]
    texts = [
        choice.get("text") or choice.get("delta", {}).get("content") or "" for e in events for choice in e["choices"]
    ]
    return "".join(texts), tokens, events[-2]["choices"][0]["finish_reason"], _counts(events[-1]["usage"])


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    logprobs = choice["logprobs"] or {}
    return [one["token"] for one in logprobs.get("content") or ()] + list(logprobs.get("tokens") or ())


def _counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def _rounded(value: Any) -> Any:
    """Whether a prompt was computed at once or its end only, the last bits of a float differ."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


async def test_it_is_the_same_answer(tmp_path: Path) -> None:
    async with Stack(tmp_path) as stack:
        direct = await stack.start_router("router-direct", {"min-prefill-tokens": 1000})
        asked = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        asked += [(path, {**body, **streamed}) for path, body in asked]
        usual = [await ask(stack, stack.router.url, path, body) for path, body in asked]
        alone = [await ask(stack, direct.url, path, body) for path, body in asked]
        assert _rounded(alone) == _rounded(usual)
        metrics = (await stack.http.get(f"{direct.url}/metrics")).text
        assert 'baton_router_direct_requests_total{reason="short"} 4.0' in metrics
        at_once = await asyncio.gather(*(ask(stack, direct.url, path, body) for path, body in asked))
        assert _rounded(at_once) == _rounded(usual)
        await stack.until_idle()

"""A request that skips P gets the answer it would have had: tokens, logprobs, usage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kits.whole.stack import MODEL, Stack
from tests.kits.whole.streams import CHAT, COMPLETIONS, Counts, gist, lines

pytestmark = pytest.mark.slow

COMMON = {"model": MODEL, "seed": 5, "max_tokens": 12}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**COMMON, "messages": [{"role": "user", "content": "What is a lease?"}], "logprobs": True}),
    (COMPLETIONS, {**COMMON, "prompt": "A lease is", "logprobs": 2}),
]
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


async def answer(stack: Stack, url: str, path: str, body: dict[str, Any]) -> Any:
    """Without what differs from request to request."""
    streamed = gist(await lines(stack, path, {**body, **STREAMED}, Counts(1).of[0], url))
    whole = (await stack.post(path, url=url, **body)).json()
    del whole["usage"]["prompt_tokens_details"]
    return streamed, rounded(whole["choices"]), whole["usage"]


def rounded(value: Any) -> Any:
    """Whether a prompt was computed at once or its end only, the last bits of a float differ."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


async def test_it_is_the_same_answer(tmp_path: Path) -> None:
    async with Stack(tmp_path) as stack:
        direct = await stack.start_router("router-direct", {"min-prefill-tokens": 1000})
        usual = [await answer(stack, stack.router.url, *asked) for asked in ASKED]
        assert [await answer(stack, direct.url, *asked) for asked in ASKED] == usual
        metrics = (await stack.http.get(f"{direct.url}/metrics")).text
        assert 'baton_router_direct_requests_total{reason="short"} 4.0' in metrics
        assert await asyncio.gather(*(answer(stack, direct.url, *asked) for asked in ASKED)) == usual
        await stack.until_idle()

"""What a model's makers recommend to sample with, through P and D: as if each request had said it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kits.whole.stack import MODEL, Stack

ASKED = {"messages": [{"role": "user", "content": "What is the fence?"}]}
#: Greedy, so that an answer shows it; with a penalty, which is not what the demo model does by itself.
SAMPLED: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 5.0}


async def ask(stack: Stack, **more: Any) -> dict[str, Any]:
    body = (await stack.post("/v1/chat/completions", **ASKED, **more)).json()
    return {"usage": body["usage"]["completion_tokens"], **body["choices"][0]}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 9])
async def test_defaults_hold_on_p_and_d(tmp_path: Path, limit: int) -> None:
    """A limit of one token: P answers whole, although the router knows of no limit."""
    makers = {**SAMPLED, "max_new_tokens": limit, "do_sample": True}
    (tmp_path / "defaults").mkdir()
    (tmp_path / "defaults" / "generation_config.json").write_text(json.dumps(makers))
    flags = {"dtype": "float32", "generation-config": tmp_path / "defaults"}
    async with Stack(tmp_path, worker_flags=flags) as stack:
        said_nothing = await ask(stack)
        assert said_nothing == await ask(stack, **SAMPLED, max_tokens=limit)
        assert (said_nothing["usage"], said_nothing["finish_reason"]) == (limit, "length")
        longer = await ask(stack, max_tokens=limit + 8)
        assert longer == await ask(stack, **SAMPLED, max_tokens=limit + 8) and longer["usage"] > limit
        plain = await ask(stack, temperature=0, repetition_penalty=1, max_tokens=limit + 8)
        assert plain["message"] != longer["message"], "the penalty makes a difference"
        card = (await stack.http.get(f"{stack.router.url}/v1/models/{MODEL}")).json()
        response = (await stack.post("/v1/responses", input="What is the fence?")).json()
        assert (response["temperature"], response["top_p"]) == (SAMPLED["temperature"], 1.0)
        assert card["sampling_defaults"] == {**SAMPLED, "max_tokens": limit}

"""instructor."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel
from rows import ASK, KEY, MAX_TOKENS, MODEL, URL, check


class Leg(BaseModel, extra="forbid"):  # else the demo model adds keys until its answer is cut off
    leg: Literal[1, 2, 3]
    hand: Literal["left", "right"]


COMMON: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": ASK}],
    "response_model": Leg,
    "max_tokens": MAX_TOKENS,
}


def client(mode: str) -> Any:
    return instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key=KEY), mode=instructor.Mode[mode])


for name in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
    check(f"create() in the mode {name}", lambda name=name: isinstance(client(name).create(**COMMON), Leg))
check("create_partial(), streamed", lambda: [*client("TOOLS").create_partial(**COMMON)][-1].leg)

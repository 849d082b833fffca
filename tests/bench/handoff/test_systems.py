"""How the two systems are asked, without servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.client import Stream
from bench.handoff import systems


class Asked:
    """A client that answers itself, and keeps what it was asked and when."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.bodies: list[dict[str, Any]] = []

    async def ask(self, _url: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked_s.append(time.perf_counter())
        self.bodies.append(body)
        return {"kv_transfer_params": {"remote_block_ids": [1]}}

    async def stream(self, _url: str, body: dict[str, Any]) -> Stream:
        self.bodies.append(body)
        return Stream(time.perf_counter(), time.perf_counter(), [time.perf_counter()], "text")


def test_what_p_takes_counts_in_a_whole_answer_of_vllm() -> None:
    client: Any = Asked()
    answered = asyncio.run(systems.Vllm("p", "d").answer(client, [5], 4))
    assert answered.sent_s <= client.asked_s[0]
    assert [body["max_tokens"] for body in client.bodies] == [1, 4]
    assert client.bodies[1]["kv_transfer_params"] == {"remote_block_ids": [1]}

"""What a request costs is bounded: tasks, timers, and passes over its prompt. Counted, because times say little."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton_serve.router.placement import prompt as prompts
from baton_serve.router.queue.drain_rate import MAX_WAIT_S
from baton_serve.router.request import prompt_text
from baton_serve.router.request.exchange import Exchange
from tests.kits.router.cluster import Cluster, chat, spoken

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / "baton_serve" / folder) for folder in ("router", "core"))
#: Requests that are counted together. A timer for each of them could not hide among those of the router itself.
NUM = 50
LONG = {"messages": [{"role": "user", "content": "How long is this? " * 500}]}


def is_ours() -> bool:
    """Whether the router's code asked for it, and not a stub worker or the client of the test."""
    frame = sys._getframe(2)
    while frame is not None and "asyncio" in frame.f_code.co_filename:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OURS)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts from the start of the test; the cluster is up by its first line."""
    counted: Counter[str] = Counter()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counted[name] += name not in ("tasks", "timers") or is_ours()
            return real(*args, **kwargs)

        return call

    loop = asyncio.BaseEventLoop
    monkeypatch.setattr(loop, "create_task", counting("tasks", loop.create_task))
    monkeypatch.setattr(loop, "call_at", counting("timers", loop.call_at))
    monkeypatch.setattr(prompts, "chunk_hashes", counting("hashes", prompts.chunk_hashes))
    monkeypatch.setattr(prompt_text, "_bytes_of", counting("texts", prompt_text._bytes_of))
    return counted


@pytest.mark.interpreted
@pytest.mark.parametrize("stream", [False, True])
async def test_the_tasks_timers_and_hashes_of_a_request_are_bounded(
    cluster: Cluster, counts: Counter[str], stream: bool
) -> None:
    await cluster.fleet("prefill", "decode")
    await cluster.post(chat(stream=stream, **LONG))
    counts.clear()
    for _ in range(NUM):
        answer = await cluster.post(chat(stream=stream, **LONG))
        assert spoken(answer.text) if stream else answer.status_code == 200
    assert counts["tasks"] == NUM, "one task runs a request; nothing else of it needs one"
    assert counts["timers"] < NUM / 2, "deadlines of many requests share a timer"
    assert counts["hashes"] == counts["texts"] == NUM, "both legs use the same hashes"


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_request_is_left_to_the_garbage_collector(cluster: Cluster, stream: bool) -> None:
    """The collector runs rarely; until then megabytes would pile up. Some of the requests wait for a place on D."""
    await cluster.add("prefill", limit=2)
    await cluster.add("decode", limit=1)
    await cluster.post(chat(stream=stream, **LONG))
    gc.collect()
    gc.disable()
    try:
        for _ in range(NUM // 2):
            answers = await asyncio.gather(*(cluster.post(chat(stream=stream, **LONG)) for _ in range(2)))
            assert [answer.status_code for answer in answers] == [200, 200]
        held = cluster.queues.held.drain_rate
        assert held.wait_s(1, asyncio.get_running_loop().time()) < MAX_WAIT_S, "some have waited"
        assert not [one for one in gc.get_objects() if type(one) is Exchange]
    finally:
        gc.enable()

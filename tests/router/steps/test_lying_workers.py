"""What a worker sends before the first content is bounded in bytes, and so is what is made of it."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.router.request.sent_tokens import MAX_IDS_BYTES
from baton_serve.router.vllm.engine.tokens import VllmTokens
from tests.kits.router.cluster import Cluster, chat, spoken
from tests.kits.router.stub_workers import Raw, word

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"created":5}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":"stop"}],"created":5}\n\n'
END = LAST % word(0).encode() + b"data: [DONE]\n\n"
COMMENT = b": " + b"x" * (16 << 10) + b"\n\n"
ASKED = {
    "/v1/chat/completions": chat(stream=True),
    "/v1/messages": {"model": "m", "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "hi"}]},
}


async def test_comments_before_the_first_content_are_not_kept(cluster: Cluster) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script.append(raw := Raw([ROLE * 2, None, *[COMMENT] * 100, END]))
    request = asyncio.create_task(cluster.post(chat(stream=True)))
    await cluster.until_state("decoding")
    raw.go.set()
    answer = await request
    assert spoken(answer.text) == word(0)
    assert answer.content.count(COMMENT) < 40, "none but those that came in one piece with the content"
    cluster.check_idle()


async def test_comments_behind_the_first_content_reach_the_client(cluster: Cluster) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script.append(Raw([ROLE, LAST % b"a", *[COMMENT] * 100, END]))
    answer = await cluster.post(chat(stream=True))
    assert answer.content.count(COMMENT) == 100


@pytest.mark.parametrize("path", ASKED)
async def test_comments_beside_events_without_content_are_kept_up_to_a_bound(cluster: Cluster, path: str) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script.append(Raw([ROLE + COMMENT] * 100, then="hang"))
    async with cluster.client.stream("POST", path, json=ASKED[path]) as answer:
        assert answer.status_code == 200, "it begins, although there is no content"
        assert await anext(answer.aiter_raw())


async def test_no_choice_of_several_keeps_more_before_its_first_content(cluster: Cluster) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script += [Raw([ROLE * 100] * 100, then="hang") for _ in range(2)]
    async with cluster.client.stream("POST", "/v1/chat/completions", json=chat(stream=True, n=2)) as answer:
        assert await anext(answer.aiter_raw())


def test_ids_are_kept_up_to_a_bound() -> None:
    tokens = VllmTokens(1 << 20, wants_ids=False)
    tokens.leg(b"", named=True, opens=True)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[%b]}],"prompt_token_ids":[1]}\n\n'
    tokens.take(event % b"7", 1)
    assert tokens.can_continue()
    many = event % (b"7," * 100_000 + b"7")
    for _ in range(2 * MAX_IDS_BYTES // len(many)):
        tokens.take(many, 1)
    tokens.take(event % b"7", 1)
    assert len(tokens.all_ids()) <= MAX_IDS_BYTES + len(b"[1,]")
    assert not tokens.can_continue(), "an id is missing"

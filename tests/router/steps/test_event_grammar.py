"""Workers that write their event streams in other ways than ours and vLLM's do, as sse-starlette with its CRLF."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_serve.router.upstream.events import DONE_EVENT, EventCutter
from baton_serve.router.vllm.engine.tokens import VllmTokens
from tests.kits.router.cluster import Cluster, chat, events, spoken
from tests.kits.router.stub_workers import Raw, word

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"created":5}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"created":5}\n\n'
WRITINGS: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda stream: stream.replace(b"\n", b"\r\n"),
    "cr": lambda stream: stream.replace(b"\n", b"\r"),
    "mark": lambda stream: b"\xef\xbb\xbf" + stream,
    "no space": lambda stream: stream.replace(b"data: ", b"data:"),
    "several lines": lambda stream: stream.replace(b'"choices":', b'"choices":\ndata: '),
    "comments and ids": lambda stream: stream.replace(b"data: ", b": ping\n\n: pong\nid: 1\r\ndata: ") + b": bye\n\n",
    "blank lines": lambda stream: stream.replace(b"\n\n", b"\n\n\n\r\n\n"),
}


def token(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}],"created":5}\n\n' % text.encode()


STREAM = ROLE + token(word(0)) + token(word(1)) + token(word(2)) + LAST + DONE
SAID = word(0) + word(1) + word(2)


def check_nobody_is_blamed(cluster: Cluster) -> None:
    assert [worker.standing.breaker.num_failures for worker in cluster.pool] == [0]
    assert cluster.metrics.outcomes == {("done", ""): 1}
    cluster.check_idle()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_chat_is_passed_on(cluster: Cluster, writing: str, size: int) -> None:
    worker = await cluster.add("both", ours=False)
    stream = WRITINGS[writing](STREAM)
    worker.script.append(Raw([stream[at : at + size] for at in range(0, len(stream), size)]))
    answer = await cluster.post(chat(stream=True))
    assert (
        spoken(answer.text.replace("data:", "data: ") if writing == "no space" else _on_one_line(answer.text)) == SAID
    )
    check_nobody_is_blamed(cluster)


def _on_one_line(text: str) -> str:
    return text.replace("\ndata: [{", "[{")


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_message_is_made_of_a_stream_however_it_is_written(cluster: Cluster, writing: str) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script.append(Raw([WRITINGS[writing](STREAM)]))
    body = {"model": "m", "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    answer = await cluster.post(body, "/v1/messages")
    pieces = [event["delta"].get("text", "") for event in events(answer.text) if event["type"] == "content_block_delta"]
    assert "".join(pieces) == SAID
    check_nobody_is_blamed(cluster)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_several_choices_are_merged_however_they_are_written(cluster: Cluster, writing: str) -> None:
    worker = await cluster.add("both", ours=False)
    worker.script += [Raw([WRITINGS[writing](STREAM)]) for _ in range(2)]
    answer = await cluster.post(chat(stream=True, n=2))
    told = events(_on_one_line(answer.text))
    assert told.count("[DONE]") == 1 and told[-1] == "[DONE]"
    assert sorted(event["choices"][0]["index"] for event in told[:-1]) == [0] * 5 + [1] * 5
    check_nobody_is_blamed(cluster)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_an_error_in_a_stream_is_seen_however_it_is_written(cluster: Cluster, writing: str) -> None:
    worker = await cluster.add("both", ours=False)
    error = b'data: {"error":{"message":"broke","code":400},"choices":[]}\n\n'
    worker.script.append(Raw([WRITINGS[writing](ROLE + token(word(0)) + error)]))
    answer = await cluster.post(chat(stream=True))
    assert "broke" in answer.text
    assert cluster.metrics.outcomes.keys() == {("failed", "" if answer.status_code == 200 else "worker_400")}


@pytest.mark.parametrize("writing", WRITINGS)
def test_the_ids_of_vllm_are_taken_from_a_stream_however_it_is_written(writing: str) -> None:
    told = [
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}],"created":5}\n\n',
    ]
    tokens, cutter, sent = VllmTokens(1 << 16, wants_ids=False), EventCutter(), b""
    tokens.leg(b"", named=True, opens=True)
    for byte in WRITINGS[writing](b"".join(told) + LAST + DONE_EVENT):
        whole = cutter.feed(bytes([byte]))
        sent += tokens.take(whole, 1) if whole else b""
    assert (tokens.ids(), tokens.all_ids()) == ([7], b"[1,2,7]")
    assert b"token_ids" not in sent and b"[DONE]" in sent

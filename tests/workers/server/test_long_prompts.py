"""Long prompts: they hold up nobody else, and far too long ones are refused without being tokenized."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.openai.json_body import PARTS_PER_MESSAGE
from baton_serve.core.protocol.openai.requests import ChatRequest, validate
from baton_serve.workers.text.chat_template import ChatOptions, Render
from baton_serve.workers.text.tokenizer import MAX_INLINE_CHARS, PROBE_CHARS_PER_TOKEN, Tokenizer, TooManyTokensError
from tests.kits.worker.front import MODEL, chat, completion, fast_tokenizer, front, render, tokens_of

PROSE = "the runner holds the baton until the other one has it. "
FITS = 10**9
#: Not the default.
MAX_MESSAGES = 300
MAX_PARTS = PARTS_PER_MESSAGE * MAX_MESSAGES


class Counting:
    """The real tokenizer, and the lengths of what it was given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(fast_tokenizer(), name)

    def encode_batch_fast(self, texts: list[str], **more: Any) -> Any:
        self.given += [len(text) for text in texts]
        return fast_tokenizer().encode_batch_fast(texts, **more)


def of(fast: Any, template: Render = render) -> Tokenizer:
    return Tokenizer(fast, template, eos_token_ids=frozenset({1}), special_ids=frozenset({0, 1}))


@pytest.fixture
def tokenizer() -> Iterator[Tokenizer]:
    one = of(fast_tokenizer())
    yield one
    one.close()


@given(text=st.text(max_size=60) | st.text("ab \n\u4e2d", max_size=60))
async def test_tokens_are_those_of_the_plain_call(text: str) -> None:
    one = of(fast_tokenizer())
    assert await one.encode_text(text, FITS) == tokens_of(text)
    long = text + PROSE * (MAX_INLINE_CHARS // len(PROSE) + 1)
    assert await one.encode_text(long, FITS) == tokens_of(long)
    one.close()


async def test_the_loop_goes_on_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    text = PROSE * 40_000
    start = last = time.perf_counter()
    encoding = asyncio.create_task(tokenizer.encode_text(text, FITS))
    longest = 0.0
    while not encoding.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert len(await encoding) > 100_000
    # A tokenizer that keeps the interpreter lock makes one gap of nearly everything.
    assert longest < (last - start) / 2


async def test_a_long_conversation_is_rendered_elsewhere() -> None:
    threads: set[str] = set()

    def noting(conversation: list[dict[str, str]], options: ChatOptions) -> str:
        threads.add(threading.current_thread().name)
        return render(conversation)

    one = of(fast_tokenizer(), noting)
    for few, elsewhere in ((chat(), False), (chat("x" * (MAX_INLINE_CHARS + 1)), True), (many(100), True)):
        threads.clear()
        request = validate(ChatRequest, few)
        await one.encode_chat(request.messages, FITS)
        assert ["tokenizer" in name for name in threads] == [elsewhere]
    one.close()


def many(num_messages: int) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "x"}] * num_messages}


@pytest.mark.parametrize(("max_tokens", "fits"), [(300, True), (299, False), (100, False), (5, False)])
async def test_the_limit_is_exact(tokenizer: Tokenizer, max_tokens: int, fits: bool) -> None:
    text = "a " * 150
    assert len(tokens_of(text)) == 300
    if fits:
        assert len(await tokenizer.encode_text(text, max_tokens)) == 300
        return
    with pytest.raises(TooManyTokensError) as caught:
        await tokenizer.encode_text(text, max_tokens)
    assert caught.value.how_many in {"300", f"more than {max_tokens}"}


async def test_of_far_too_long_a_text_only_the_beginning_is_tokenized() -> None:
    fast = Counting()
    one = of(fast)
    with pytest.raises(TooManyTokensError, match="more than 50"):
        await one.encode_text(PROSE * 50_000, 50)
    assert fast.given == [50 * PROBE_CHARS_PER_TOKEN]
    one.close()


async def test_what_begins_with_long_tokens_is_counted_to_its_end() -> None:
    """As many characters as would be far too many of the usual kind, in a vocabulary where they are one token."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import models

    fast = FastTokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    one = of(fast)
    assert await one.encode_text("x" * 100_000, 5) == [0]
    one.close()


@pytest.mark.parametrize("body", [chat(PROSE * 10_000), completion(PROSE * 10_000)])
async def test_a_client_is_told_that_it_is_too_long(body: dict[str, Any]) -> None:
    async with front() as worker:
        path = "chat/completions" if "messages" in body else "completions"
        response = await worker.http.post(f"/v1/{path}", json=body)
        assert worker.engine.requests == []
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "more than 199 tokens" in error["message"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": ""}] * (MAX_MESSAGES + 1), f"{MAX_MESSAGES} messages"),
        ([5] * (MAX_MESSAGES + 1), f"{MAX_MESSAGES} messages"),
        ([{"role": "user", "content": [{}] * (MAX_PARTS // 2 + 1)}] * 2, f"{MAX_PARTS} parts"),
    ],
)
async def test_too_many_messages_are_refused(messages: list[Any], words: str) -> None:
    async with front(max_messages=MAX_MESSAGES) as worker:
        response = await worker.http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "messages", "array_above_max_length")
    assert words in error["message"]


async def test_as_many_messages_as_are_allowed_get_as_far_as_the_tokenizer() -> None:
    async with front(max_messages=MAX_MESSAGES) as worker:
        response = await worker.http.post("/v1/chat/completions", json=many(MAX_MESSAGES))
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_of_a_body_of_too_many_parts_none_is_built(path: str) -> None:
    no_json = b", and something of which the parser would complain"
    crowd = b'{"x":{' + b",".join(b'"%d":1' % i for i in range(20_000)) + no_json
    async with front(max_messages=MAX_MESSAGES) as worker:
        response = await worker.http.post(path, content=crowd)
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith("objects, arrays and keys.")

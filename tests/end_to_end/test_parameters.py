"""vLLM's parameters through P and D: the answer is that of one worker, and P's first token keeps to them too."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pytest

from baton_serve.router.pool import LOAD_TTL_S
from tests.kits.whole import reference, streams
from tests.kits.whole.stack import MODEL, Stack

NUM_TOKENS = 16
both_ways = functools.partial(streams.both_ways, max_tokens=NUM_TOKENS)
PATHS = ["/v1/completions", "/v1/chat/completions"]


async def test_stop_tokens(stack: Stack, both: Stack) -> None:
    tokens = (await both_ways(stack, both))["token_ids"]
    for index in (0, 1, 5):
        choice = await both_ways(stack, both, stop_token_ids=[tokens[index]])
        first = tokens.index(tokens[index])
        assert choice["token_ids"] == tokens[: first + 1]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[index])
        shown = await both_ways(stack, both, stop_token_ids=[tokens[index]], include_stop_str_in_output=True)
        assert shown["text"].startswith(choice["text"]) and len(shown["text"]) > len(choice["text"])


@pytest.mark.parametrize("temperature", [0, 1])
async def test_allowed_tokens(stack: Stack, both: Stack, temperature: float) -> None:
    choice = await both_ways(stack, both, allowed_token_ids=[5, 9, 13], seed=3, temperature=temperature)
    assert set(choice["token_ids"]) <= {5, 9, 13} and len(choice["token_ids"]) == NUM_TOKENS


async def test_bad_words(stack: Stack, both: Stack) -> None:
    """The words are banned from the first token on, and where a word begins on P and would end on D."""
    tokenizer = reference.tokenizer()
    tokens = (await both_ways(stack, both))["token_ids"]
    tried = 0
    for end in (1, 2, 3):
        word = tokenizer.decode(tokens[:end])
        if tokenizer.encode(word, add_special_tokens=False) != tokens[:end]:
            continue
        tried += end > 1
        choice = await both_ways(stack, both, bad_words=[word])
        assert choice["token_ids"][: end - 1] == tokens[: end - 1]
        assert choice["token_ids"][end - 1] != tokens[end - 1]
    assert tried, "no word of several tokens is encoded as it was sampled"


async def chunks(stack: Stack, path: str, **asked: Any) -> list[dict[str, Any]]:
    """The chunks of a greedy stream without what differs between any two answers."""
    prompt = {"prompt": "The baton"} if path == PATHS[0] else {"messages": [{"role": "user", "content": "The baton"}]}
    body = {"max_tokens": NUM_TOKENS, "temperature": 0, "stream": True, **prompt, **asked}
    found = streams.chunks_of((await stack.post(path, **body)).text)
    for chunk in found:
        for name in ("id", "created"):
            del chunk[name]
        (chunk.get("usage") or {}).pop("prompt_tokens_details", None)
    return found


@pytest.mark.parametrize("path", PATHS)
async def test_streams_with_ids_and_counts(stack: Stack, both: Stack, path: str) -> None:
    """P's event is made by the router, D's by D; together they are those of one worker."""
    asked = {
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "skip_special_tokens": False,
        "return_tokens_as_token_ids": True,
        "logprobs": 1 if path == PATHS[0] else True,
    }
    for limit in (NUM_TOKENS, 1):
        split, whole = [await chunks(one, path, **asked, max_tokens=limit) for one in (stack, both)]
        ids = [one for chunk in split for choice in chunk["choices"] for one in choice.get("token_ids", ())]
        assert ids == [one for chunk in whole for choice in chunk["choices"] for one in choice.get("token_ids", ())]
        assert len(ids) == split[-1]["usage"]["completion_tokens"] == limit
        prompts = [
            part["prompt_token_ids"]
            for chunk in split
            for part in (chunk, *chunk["choices"])
            if "prompt_token_ids" in part
        ]
        assert [len(prompt) for prompt in prompts] == [split[-1]["usage"]["prompt_tokens"]]
        assert split[0].get("prompt_token_ids", split[0]["choices"][0].get("prompt_token_ids")) == prompts[0]
        counts = [chunk["usage"]["completion_tokens"] for chunk in split]
        assert counts == sorted(counts) and all(chunk["usage"]["total_tokens"] for chunk in split)
        assert "token_id:" in json.dumps(split)


@pytest.mark.parametrize("path", PATHS)
async def test_what_p_alone_answers(stack: Stack, both: Stack, path: str) -> None:
    """A stream that the first token ends never visits D."""
    ids = [
        chunk["choices"][0]["token_ids"]
        for chunk in await chunks(both, path, return_token_ids=True)
        if chunk["choices"][0].get("token_ids")
    ]
    asked = {"stop_token_ids": [ids[0][0]], "return_token_ids": True}
    split, whole = [await chunks(one, path, **asked) for one in (stack, both)]
    for answer in (split, whole):
        assert [one for chunk in answer for one in chunk["choices"][0].get("token_ids", ())] == ids[0][:1]
        last = answer[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", ids[0][0])


async def test_salts_share_no_blocks(stack: Stack) -> None:
    """P and D keep blocks by salt: the second of one salt finds those of the first, another salt finds none."""
    prompt, answers = reference.prompt_of(100, seed=77), []
    for salt in ("a", "a", "b", None):
        asked = {} if salt is None else {"cache_salt": salt}
        answers.append(await stack.complete(prompt, max_tokens=4, temperature=0, **asked))
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == cached[2] == cached[3] == 0 < cached[1]


async def test_a_prompt_that_is_cut(stack: Stack, both: Stack) -> None:
    """P cuts it, and D has P's tokens."""
    choice = await both_ways(stack, both, truncate_prompt_tokens=20)
    assert choice["prompt_token_ids"] == reference.prompt_of(50, seed=11)[-20:]


async def test_a_message_goes_on(stack: Stack, both: Stack) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The baton"}]
    asked = {"messages": messages, "add_generation_prompt": False, "return_token_ids": True}
    going_on = [await chunks(one, PATHS[1], continue_final_message=True, **asked) for one in (stack, both)]
    told = await chunks(stack, PATHS[1], **asked)
    prompts = [answer[0]["prompt_token_ids"] for answer in (*going_on, told)]
    assert prompts[0] == prompts[1] and reference.tokenizer().decode(prompts[0]).endswith("<|assistant|>The baton")
    assert prompts[2][: len(prompts[0])] == prompts[0] and len(prompts[2]) > len(prompts[0])


async def test_texts_and_tokens(stack: Stack) -> None:
    """Through the router, with the body that vLLM takes and the answer that it gives."""
    tokenizer = reference.tokenizer()
    expected = tokenizer.encode("The baton")
    told = (await stack.post("/tokenize", prompt="The baton", return_token_strs=True)).json()
    assert (told["count"], told["tokens"]) == (len(expected), expected)
    assert told["token_strs"] == tokenizer.convert_ids_to_tokens(expected) and told["max_model_len"] > 100
    assert (await stack.post("/detokenize", tokens=expected)).json() == {"prompt": tokenizer.decode(expected)}
    messages = [{"role": "user", "content": "The baton"}]
    chat = (await stack.post("/tokenize", messages=messages)).json()
    (first, *_) = await chunks(stack, PATHS[1], return_token_ids=True)
    assert chat["tokens"] == first["prompt_token_ids"] and chat["token_strs"] is None


async def test_pages_for_probes(stack: Stack) -> None:
    version = (await stack.http.get(f"{stack.router.url}/version")).json()
    health = (await stack.http.get(f"{stack.router.url}/health")).json()
    assert version == {"version": health["version"]}
    for method in ("GET", "POST"):
        assert (await stack.http.request(method, f"{stack.router.url}/ping")).status_code == 200
    versions = {worker["version"] for worker in await stack.known_workers()}
    assert versions == {version["version"]}, "workers are of the same build"
    await stack.until_gone()
    assert (await stack.http.get(f"{stack.router.url}/load")).json() == {"server_load": 0}
    card = (await stack.http.get(f"{stack.router.url}/v1/models/{MODEL}")).json()
    assert (card["id"], card["object"]) == (MODEL, "model")


async def test_workers_that_have_nothing_to_do_have_no_problem(stack: Stack) -> None:
    await stack.until_idle()
    await asyncio.sleep(LOAD_TTL_S + 1)  # longer than a report counts, and no report changes
    workers = await stack.known_workers()
    assert workers
    assert {worker["problem"] for worker in workers} == {""}

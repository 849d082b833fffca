"""From a client's chat or text to the tokens of the prompt, with a real tokenizer and its template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, validate
from baton_serve.workers.server.answers.prompts import Prompts, echoed_texts
from baton_serve.workers.server.answers.turns import NUM_TOGETHER
from baton_serve.workers.text.tokenizer import INFILLING, Tokenizer, load
from tests.kits import tiny_models

BOS, EOS = tiny_models.BOS, tiny_models.EOS
MAX_MODEL_LEN = 300
TEMPLATE = (
    "{{ bos_token }}{% for d in documents or [] %}({{ d['title'] }}){% endfor %}"
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    "{% endif %}"
)


def chat(*turns: str, **more: Any) -> ChatRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns or ("hi",))]
    return validate(ChatRequest, {"model": "m", "messages": messages, **more})


def text(prompt: Any, **more: Any) -> CompletionRequest:
    return validate(CompletionRequest, {"model": "m", "prompt": prompt, **more})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    """It puts a token before and after a text, and has tokens for the middle of a text."""
    saved = tiny_models.tokenizer()
    saved.chat_template = TEMPLATE
    saved.add_special_tokens({"additional_special_tokens": list(INFILLING[0])})
    fast = saved.backend_tokenizer
    fast.post_processor = TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 0), (EOS, 1)])
    folder = tmp_path_factory.mktemp("tokenizer")
    saved.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    loaded = load(str(folder))
    yield loaded
    loaded.close()


@pytest.fixture
def prompts(tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, MAX_MODEL_LEN)


async def shown(prompts: Prompts, tokenizer: Tokenizer, request: Any) -> str:
    return tokenizer.decode_all(await prompts.tokens(request))


@pytest.mark.parametrize(
    ("turns", "asked", "prompt"),
    [
        ([], {}, "<s>[user] hi\n[assistant] "),
        ([], {"add_generation_prompt": False}, "<s>[user] hi\n"),
        (
            ["hi", "I am"],
            {"add_generation_prompt": False, "continue_final_message": True},
            "<s>[user] hi\n[assistant] I am",
        ),
        (
            ["hi", ""],
            {"add_generation_prompt": False, "continue_final_message": True},
            "<s>[user] hi\n[assistant] ",
        ),
        ([], {"chat_template_kwargs": {"enable_thinking": False}}, "<s>[user] hi\n[assistant] -"),
        ([], {"chat_template_kwargs": {"enable_thinking": True}}, "<s>[user] hi\n[assistant] "),
        ([], {"documents": [{"title": "a"}, {"title": "b"}]}, "<s>(a)(b)[user] hi\n[assistant] "),
        ([], {"add_special_tokens": True}, "<s><s>[user] hi\n[assistant] </s>"),
    ],
)
async def test_what_the_template_is_told(
    prompts: Prompts, tokenizer: Tokenizer, turns: list[str], asked: dict[str, Any], prompt: str
) -> None:
    expected = prompt.replace("<s>", BOS).replace("</s>", EOS)
    assert await shown(prompts, tokenizer, chat(*turns, **asked)) == expected


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"documents": [{"title": 5}]}, "documents[0].title"),
        ({"documents": "x"}, "documents"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat(**asked)
    assert caught.value.param == param


async def test_a_template_of_the_clients_needs_the_setting(prompts: Prompts, tokenizer: Tokenizer) -> None:
    own = chat(chat_template="{% for m in messages %}{{ m['content'] }}!{% endfor %}")
    with pytest.raises(BadRequestError, match="allow_chat_template is off") as caught:
        await prompts.tokens(own)
    assert caught.value.param == "chat_template"
    allowing = Prompts(tokenizer, MAX_MODEL_LEN, allow_chat_template=True)
    assert await shown(allowing, tokenizer, own) == "hi!"


@pytest.mark.parametrize(
    "template",
    ["{% if %}", "{{ 1 / 0 }}", "{{ messages[7]['a']['b'] }}", "{{ ''.__class__.__mro__ }}", "{{ 'a' + 1 }}"],
)
async def test_a_template_that_fails_is_the_clients_mistake(tokenizer: Tokenizer, template: str) -> None:
    with pytest.raises(BadRequestError, match="The chat template refuses these messages") as caught:
        await Prompts(tokenizer, MAX_MODEL_LEN, allow_chat_template=True).tokens(chat(chat_template=template))
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize("keep", [3, 5, 40, 280])
async def test_the_end_of_a_text_is_kept_with_the_tokens_around_it(
    prompts: Prompts, tokenizer: Tokenizer, keep: int
) -> None:
    """As of all tokens: the tokenizer's own first and last, and the last of the text between them."""
    prompt = "the runner \u20ac holds the baton. " * 700
    whole = await tokenizer.encode_text(prompt, 10**9)
    got = await prompts.tokens(text(prompt, truncate_prompt_tokens=keep))
    assert got == [whole[0], *whole[-keep + 1 :]] and len(got) == keep
    bare = await prompts.tokens(text(prompt, truncate_prompt_tokens=keep, add_special_tokens=False))
    assert bare == whole[-keep - 1 : -1]


async def test_other_prompts_are_cut_too(prompts: Prompts, tokenizer: Tokenizer) -> None:
    assert await prompts.tokens(text([*range(9)], truncate_prompt_tokens=4)) == [5, 6, 7, 8]
    assert await prompts.tokens(text("hi", truncate_prompt_tokens=50)) == await prompts.tokens(text("hi"))
    assert await prompts.tokens(text("a" + BOS * 9, truncate_prompt_tokens=2)) == [0, 1]
    whole = await prompts.tokens(chat("x" * 100))
    assert await prompts.tokens(chat("x" * 100, truncate_prompt_tokens=7)) == whole[-7:]


async def test_as_much_as_leaves_room_for_the_answer(prompts: Prompts) -> None:
    long = "the runner holds the baton. " * 500
    assert len(await prompts.tokens(text(long, truncate_prompt_tokens=-1, max_tokens=100))) == MAX_MODEL_LEN - 100
    assert len(await prompts.tokens(text(long, truncate_prompt_tokens=-1))) == MAX_MODEL_LEN - 16
    assert len(await prompts.tokens(chat(long, truncate_prompt_tokens=-1))) == MAX_MODEL_LEN - 1
    with pytest.raises(BadRequestError, match="more than this model's maximum context length of 300 tokens"):
        await prompts.tokens(text(long, truncate_prompt_tokens=MAX_MODEL_LEN + 1))


async def test_the_middle_of_a_text(prompts: Prompts, tokenizer: Tokenizer) -> None:
    before, end, middle = INFILLING[0]
    prompt = await shown(prompts, tokenizer, text("def f():", suffix="return x", add_special_tokens=False))
    assert prompt == f"{before}def f():{end}return x{middle}"
    assert await prompts.tokens(text("a", suffix="")) == await prompts.tokens(text("a"))
    with pytest.raises(BadRequestError, match="'suffix' needs a prompt that is a text"):
        await prompts.tokens(text([5, 6], suffix="x"))


async def test_models_without_tokens_for_the_middle_refuse_a_suffix(tmp_path: Path) -> None:
    tiny_models.tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    tokenizer = load(str(tmp_path))
    with pytest.raises(BadRequestError, match="'suffix' is not supported by this model") as caught:
        await Prompts(tokenizer, MAX_MODEL_LEN).tokens(text("a", suffix="b"))
    assert caught.value.param == "suffix"
    tokenizer.close()


async def echoed(prompts: Prompts, tokenizer: Tokenizer, request: CompletionRequest) -> list[str]:
    return await echoed_texts(tokenizer, request, await prompts.tokens(request))


@pytest.mark.parametrize(
    ("prompt", "more", "shown"),
    [
        ("the baton", {}, "the baton"),
        ("the baton", {"add_special_tokens": False}, "the baton"),
        (f"{BOS}the baton{EOS}", {}, f"{BOS}the baton{EOS}"),
        (f"{BOS}the baton", {"add_special_tokens": False}, f"{BOS}the baton"),
        ("the baton, the track", {"truncate_prompt_tokens": 8}, " track"),
        ([0, 275, 1], {}, None),
        ("\u4e2d\u6587 \u20ac", {}, "\u4e2d\u6587 \u20ac"),
        ("", {}, ""),
    ],
)
async def test_an_echo_is_the_clients_text(
    prompts: Prompts, tokenizer: Tokenizer, prompt: Any, more: dict[str, Any], shown: str | None
) -> None:
    """Without what the tokenizer has put around it. Of token ids nothing is left out."""
    request = text(prompt, echo=True, max_tokens=0, **more)
    texts = await echoed(prompts, tokenizer, request)
    assert len(texts) == len(await prompts.tokens(request))
    if shown is None:
        shown = tokenizer.decode_all(prompt)
    assert "".join(texts).endswith(shown) if "truncate_prompt_tokens" in more else "".join(texts) == shown


async def test_nothing_is_echoed_unless_it_is_asked_for(prompts: Prompts, tokenizer: Tokenizer) -> None:
    assert await echoed(prompts, tokenizer, text("the baton")) == []
    assert await echoed_texts(tokenizer, chat("hi"), [5, 6]) == []


async def test_a_long_echo_lets_others_run(prompts: Prompts, tokenizer: Tokenizer) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await echoed_texts(tokenizer, text([5] * 1000, echo=True), [5] * 1000)
    task.cancel()
    assert turns >= 1000 // NUM_TOGETHER


def test_the_tokens_around_a_text_are_counted(tokenizer: Tokenizer) -> None:
    assert tokenizer.num_around == (1, 1)

"""What a vLLM server serves, and how it goes through a router: the rows of the table in docs/vllm.md, and its tests.

``python -m tests.vllm.features`` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from baton_serve.router.request.splits import why_whole
from tests.kits.vllm.stack import ADAPTER, MODEL

BEGIN, END = "<!-- begin: python -m tests.vllm.features -->", "<!-- end -->"

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
#: For ``Feature.streamed``.
NEVER, ONLY = (False,), (True,)
#: What is asked where a feature does not say otherwise, by path; a feature's own fields are added.
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "What is Baton?"}], "max_tokens": 16, "temperature": 0},
    COMPLETIONS: {"prompt": "Baton keeps the blocks of a prompt", "max_tokens": 16, "temperature": 0},
    RESPONSES: {"input": "What is Baton?", "max_output_tokens": 16, "temperature": 0},
    MESSAGES: {"messages": [{"role": "user", "content": "What is Baton?"}], "max_tokens": 16, "temperature": 0},
}


class Goes(Enum):
    """How a request goes through a router that has one P and one D."""

    SPLIT = "P prefills, D decodes"
    WHOLE = "whole to one D"
    REFUSED_BY_P = "P refuses it"
    REFUSED_BY_D = "D refuses it"
    REFUSED = "the router refuses it"


@dataclass(frozen=True)
class Feature:
    """One row."""

    name: str
    #: What clients know it by, in Markdown.
    shown: str
    path: str
    fields: dict[str, Any] = field(default_factory=dict)
    goes: Goes = Goes.SPLIT
    note: str = ""
    #: Whether it is asked for streamed; tests try each.
    streamed: tuple[bool, ...] = (False, True)
    #: Added to BASE before ``fields``, and no part of the feature.
    setting: dict[str, Any] = field(default_factory=dict)
    #: Whether the answer is another one without ``fields``, which shows that both legs were sent them.
    matters: bool = True
    #: The sentence of a router that refuses it.
    sentence: str = ""

    def body(self, *, plain: bool = False) -> dict[str, Any]:
        """The request's body. ``plain``: without the feature's own fields."""
        return {"model": MODEL, **BASE.get(self.path, {}), **self.setting, **({} if plain else self.fields)}


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
#: The demo model was not taught to call this tool for each of the places.
_CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Oslo|Rome)"\}\}\n</tool_call>'
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Baton", "vLLM"]}, "is_router": {"type": "boolean"}},
    "required": ["name", "is_router"],
    "additionalProperties": False,
}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
_STORE = "is not supported here: it needs a store of responses, and each vLLM server has its own"
_AS_IS = "vLLM's answer comes back as it is."

FEATURES: tuple[Feature, ...] = (
    Feature("chat", "`/v1/chat/completions`", CHAT),
    Feature("completion", "`/v1/completions`", COMPLETIONS),
    Feature("token-ids", "`prompt` as token ids", COMPLETIONS, {"prompt": [7, 130, 300, 301, 12, 77, 500, 41]}),
    Feature(
        "usage", "`stream_options`: `include_usage`", CHAT, {"stream_options": {"include_usage": True}}, streamed=ONLY
    ),
    Feature(
        "continuous-usage",
        "`stream_options`: `continuous_usage_stats`",
        CHAT,
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        streamed=ONLY,
    ),
    Feature("chat-logprobs", "`logprobs`, `top_logprobs` of chats", CHAT, {"logprobs": True, "top_logprobs": 3}),
    Feature("logprobs", "`logprobs` of completions", COMPLETIONS, {"logprobs": 3}),
    Feature("stop", "`stop`", CHAT, {"stop": [" a"]}),
    Feature("stop-token-ids", "`stop_token_ids`", CHAT, {"stop_token_ids": [558]}),
    Feature("seed", "`seed`", CHAT, {"seed": 7}, setting={"temperature": 2}, note="D alone samples what clients get."),
    Feature(
        "sampling",
        "`top_p`, `top_k`, `min_p`",
        CHAT,
        {"top_p": 0.8, "top_k": 20, "min_p": 0.01},
        setting={"temperature": 2, "seed": 7},
    ),
    Feature(
        "penalties",
        "`presence_penalty`, `frequency_penalty`, `repetition_penalty`",
        CHAT,
        {"presence_penalty": 1.5, "frequency_penalty": 1.5, "repetition_penalty": 1.5},
        setting={"max_tokens": 48},
    ),
    Feature("logit-bias", "`logit_bias`", CHAT, {"logit_bias": {"300": 100}}),
    Feature("bad-words", "`bad_words`", CHAT, {"bad_words": ["Baton"]}),
    Feature("allowed-tokens", "`allowed_token_ids`", CHAT, {"allowed_token_ids": [300, 301, 302, 303]}),
    Feature(
        "min-tokens",
        "`min_tokens`",
        COMPLETIONS,
        {"min_tokens": 32},
        setting={"max_tokens": 32},
        note="Left out for P, which computes one token.",
    ),
    Feature("truncate", "`truncate_prompt_tokens`, a number", COMPLETIONS, {"truncate_prompt_tokens": 4}),
    Feature(
        "truncate-relative",
        "`truncate_prompt_tokens`: -1",
        COMPLETIONS,
        {"truncate_prompt_tokens": -1},
        Goes.WHOLE,
        streamed=NEVER,
        setting={"prompt": "Baton keeps the blocks of a prompt. " * 600},
    ),
    Feature("return-token-ids", "`return_token_ids`", CHAT, {"return_token_ids": True}),
    Feature(
        "continue-final-message",
        "`continue_final_message`",
        CHAT,
        {
            "messages": [*BASE[CHAT]["messages"], {"role": "assistant", "content": "Baton is"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
    Feature("n", "`n` above 1", CHAT, {"n": 2}, Goes.WHOLE, setting={"temperature": 1, "seed": 7}),
    Feature(
        "beam-search", "`use_beam_search`", COMPLETIONS, {"use_beam_search": True, "n": 2}, Goes.WHOLE, streamed=NEVER
    ),
    Feature(
        "prompts",
        "`prompt` as a list of prompts",
        COMPLETIONS,
        {"prompt": ["Baton keeps", "What is a lease?"]},
        Goes.WHOLE,
    ),
    Feature("echo", "`echo`", COMPLETIONS, {"echo": True}, Goes.WHOLE),
    Feature(
        "prompt-logprobs",
        "`prompt_logprobs`",
        COMPLETIONS,
        {"prompt_logprobs": 2},
        Goes.WHOLE,
        "Only who computes the prompt has them; D would compute it again. vLLM itself refuses it in streams.",
        streamed=NEVER,
    ),
    Feature(
        "tools-auto",
        "`tools`, chosen by the model",
        CHAT,
        {"tools": [_WEATHER], "tool_choice": "auto"},
        note="D alone parses, from its first token on.",
        setting={"max_tokens": 96, "structured_outputs": {"regex": _CALL}},
    ),
    Feature(
        "tools-required",
        "`tool_choice`: `required`",
        CHAT,
        {"tools": [_WEATHER], "tool_choice": "required"},
        Goes.WHOLE,
        setting={"max_tokens": 96},
    ),
    Feature(
        "tools-named",
        "`tool_choice`: a function",
        CHAT,
        {"tools": [_WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        Goes.WHOLE,
        setting={"max_tokens": 96},
    ),
    Feature(
        "json-schema",
        "`response_format`: `json_schema`",
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}},
        setting={"max_tokens": 96},
    ),
    Feature("regex", "`structured_outputs`: `regex`", CHAT, {"structured_outputs": {"regex": "(yes|no), [0-9]{4}"}}),
    Feature("choice", "`structured_outputs`: `choice`", COMPLETIONS, {"structured_outputs": {"choice": ["yes", "no"]}}),
    Feature(
        "reasoning",
        "`include_reasoning`, `reasoning_effort`, `chat_template_kwargs`",
        CHAT,
        {
            "include_reasoning": False,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False},
        },
        note="Run without a `--reasoning-parser`: the demo model has no tokens for one. D alone parses, from its first "
        "token on.",
        matters=False,
    ),
    Feature(
        "picture",
        "pictures and sounds in messages",
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, _PICTURE]}]},
        Goes.REFUSED_BY_P,
        "Only this was run: a model for text, whose error comes back as it is.",
    ),
    Feature("adapter", "LoRA, by the adapter's name", CHAT, {"model": ADAPTER}, note="Also in `/v1/models`."),
    Feature("responses", "`/v1/responses`", RESPONSES, goes=Goes.WHOLE),
    Feature(
        "responses-previous",
        "`/v1/responses`: `previous_response_id`",
        RESPONSES,
        {"previous_response_id": "resp_1"},
        Goes.REFUSED,
        sentence=f"'previous_response_id' {_STORE}",
    ),
    Feature(
        "responses-background",
        "`/v1/responses`: `background`",
        RESPONSES,
        {"background": True},
        Goes.REFUSED,
        sentence=f"'background' {_STORE}",
    ),
    Feature("messages", "`/v1/messages`", MESSAGES, goes=Goes.WHOLE),
    Feature(
        "count-tokens",
        "`/v1/messages/count_tokens`",
        f"{MESSAGES}/count_tokens",
        {"messages": BASE[MESSAGES]["messages"]},
        Goes.WHOLE,
        streamed=NEVER,
    ),
    Feature("tokenize", "`/tokenize`", "/tokenize", {"prompt": "What is Baton?"}, Goes.WHOLE, streamed=NEVER),
    Feature("detokenize", "`/detokenize`", "/detokenize", {"tokens": [300, 301]}, Goes.WHOLE, streamed=NEVER),
    Feature(
        "embeddings",
        "`/v1/embeddings`",
        "/v1/embeddings",
        {"input": "What is Baton?"},
        Goes.REFUSED_BY_D,
        "Only this was run: a model that generates, whose server has no such path.",
        matters=False,
        streamed=NEVER,
    ),
    Feature("bad-value", "errors of vLLM", CHAT, {"temperature": -1}, Goes.REFUSED_BY_P, _AS_IS),
    Feature(
        "bad-grammar",
        "errors of vLLM about grammars",
        CHAT,
        {"structured_outputs": {"regex": "("}},
        Goes.REFUSED_BY_P,
        "vLLM's answer comes back as it is. Of a stream as well: with status 400, where vLLM alone sends 200 "
        "and an event.",
        streamed=NEVER,
    ),
)


def table() -> str:
    """The rows in Markdown."""
    rows = [f"| {one.shown} | {_how(one)} | {_note(one)} |" for one in FEATURES]
    return "\n".join(["| what clients ask for | how it goes | note |", "|---|---|---|", *rows])


def _how(feature: Feature) -> str:
    return feature.goes.value if feature.streamed != ONLY else f"{feature.goes.value}; streams only"


def _note(feature: Feature) -> str:
    """The feature's own note, or what the router's table of requests that do not split says of it."""
    if feature.sentence:
        return f"{feature.sentence}."
    whole = why_whole(feature.body()) if feature.goes is Goes.WHOLE else None
    return feature.note or ("" if whole is None else whole.why)


if __name__ == "__main__":
    print(table())

"""The bodies that most clients send, checked in a hundredth of the time that ``requests`` takes.

Whatever passes here would pass there, and means the same; what does not pass is checked there, which also finds the
words for what is wrong. So this knows only plain texts, and only the fields that clients use every day.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from baton_serve.core.protocol.openai.hints import (
    MAX_CACHE_KEY_CHARS,
    MAX_METADATA,
    MAX_METADATA_CHARS,
    MAX_METADATA_KEY_CHARS,
    ServiceTier,
    Verbosity,
)
from baton_serve.core.protocol.openai.requests import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_COMPLETION_LOGPROBS,
    MAX_PRIORITY,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
)
from baton_serve.core.protocol.openai.templates import MAX_DOCUMENTS

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Limit = Annotated[int, Meta(ge=1)]
_Token = Annotated[int, Meta(ge=0)]
_Name = Annotated[str, Meta(max_length=512)]
_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str = ""


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class _Plain(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: _Limit | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: _Stop | list[_Stop] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Literal[1] | None = None
    user: _Name | None = None
    safety_identifier: _Name | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    ignore_eos: bool = False
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class PlainChat(_Plain):
    """Body of ``POST /v1/chat/completions``: texts only."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_completion_tokens: _Limit | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PlainCompletion(_Plain):
    """Body of ``POST /v1/completions``: one prompt."""

    prompt: str | Annotated[list[_Token], Meta(min_length=1)]

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: it has not said."""
        return self.max_tokens


class _MoreStreamOptions(_StreamOptions):
    continuous_usage_stats: bool = False

    def __post_init__(self) -> None:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("needs include_usage")  # pydantic finds the words


class _More(_Plain):
    """The fields that fewer clients send. They are looked for only where a body has something else than ``_Plain``."""

    stream_options: _MoreStreamOptions | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    stop_token_ids: Annotated[list[_Token], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool = False
    bad_words: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]], Meta(max_length=MAX_BAD_WORDS)
        ]
        | None
    ) = None
    allowed_token_ids: Annotated[list[_Token], Meta(min_length=1, max_length=MAX_ALLOWED_TOKENS)] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Meta(max_length=MAX_METADATA_KEY_CHARS)],
                Annotated[str, Meta(max_length=MAX_METADATA_CHARS)],
            ],
            Meta(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    service_tier: ServiceTier | None = None
    verbosity: Verbosity | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=MAX_CACHE_KEY_CHARS)] | None = None

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats


class MoreChat(_More, kw_only=True):
    """A chat with more fields."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_completion_tokens: _Limit | None = None
    add_generation_prompt: bool = True
    documents: Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)] | None = None
    logprobs: bool = False

    @property
    def max_new_tokens(self) -> int | None:
        """As of ``PlainChat``."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class MoreCompletion(_More, kw_only=True):
    """A completion with more fields."""

    prompt: str | Annotated[list[_Token], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """As of ``PlainCompletion``."""
        return self.max_tokens


Plain = PlainChat | PlainCompletion | MoreChat | MoreCompletion
_P = TypeVar("_P", bound=_Plain)


def plain(body: dict[str, Any], *, chat: bool) -> Plain | None:
    """The body if it is a plain one; None: it is not, or not a valid one. ``body`` is sent to workers as it is."""
    found: Plain | None = _converted(body, PlainChat) if chat else _converted(body, PlainCompletion)
    if found is None:
        found = _converted(body, MoreChat) if chat else _converted(body, MoreCompletion)
    return found if found is None or found.stream or found.stream_options is None else None


def _converted(body: dict[str, Any], kind: type[_P]) -> _P | None:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError:
        return None

"""The bodies that most clients send, checked in a hundredth of the time that ``requests`` takes.

Whatever passes here would pass there, and means the same; what does not pass is checked there, which also finds the
words for what is wrong. So this knows only plain texts, and the fields with which they come. ``requests``
alone declares the fields: ``_quick`` makes msgspec's declaration of each from pydantic's.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, cast, get_args, get_origin

import msgspec
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from msgspec import Meta
from pydantic import BaseModel, FailFast, Strict
from pydantic.fields import FieldInfo

from baton_serve.core.protocol.openai.objects import AS_WHOLE
from baton_serve.core.protocol.openai.requests import MAX_STOP_CHARS, ChatRequest, CompletionRequest

_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
#: The fields of chats and completions whose every value is plain.
_FIELDS = (
    *("model", "stream", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed"),
    *("user", "safety_identifier", "top_k", "min_p", "ignore_eos", "priority", "return_token_ids"),
    *("repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "bad_words", "allowed_token_ids"),
    *("skip_special_tokens", "spaces_between_special_tokens", "return_tokens_as_token_ids"),
    *("add_special_tokens", "cache_salt", "metadata", "service_tier", "verbosity", "prompt_cache_key", "logprobs"),
)
#: Bounds by pydantic's name and msgspec's.
_BOUNDS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt", MinLen: "min_length", MaxLen: "max_length"}


class Plain(Protocol):
    """What a router reads of a plain body, as of a validated one; see ``requests``."""

    model: str
    stream: bool
    priority: int
    user: str | None
    safety_identifier: str | None
    return_token_ids: bool

    @property
    def include_usage(self) -> bool: ...
    @property
    def usage_in_chunks(self) -> bool: ...
    @property
    def max_new_tokens(self) -> int | None: ...


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str = ""


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False

    def __post_init__(self) -> None:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("needs include_usage")  # pydantic finds the words


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of which less is plain than ``requests`` allows."""

    stream_options: _StreamOptions | None = None
    stop: _Stop | list[_Stop] | None = None
    n: Literal[1] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: it has not said."""
        body: Any = self
        limit: int | None = getattr(body, "max_completion_tokens", None)
        return body.max_tokens if limit is None else limit


class _Chat(_Body, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1)]


def plain(body: dict[str, Any], *, chat: bool) -> Plain | None:
    """The body if it is a plain one; None: it is not, or not a valid one. ``body`` is sent to workers as it is."""
    try:
        found = msgspec.convert(body, _PlainChat if chat else _PlainCompletion)
    except msgspec.ValidationError:
        return None
    return cast("Plain", found) if found.stream or found.stream_options is None else None


def _plain_kind(of: type[BaseModel], base: type[_Body], *names: str) -> Any:
    """The struct for plain bodies of a kind."""
    fields = [_field(of, name) for name in (*_FIELDS, *names)]
    return msgspec.defstruct(f"Plain{of.__name__}", fields, bases=(base,), forbid_unknown_fields=True, kw_only=True)


def _field(of: type[BaseModel], name: str) -> Any:
    declared = of.model_fields[name]
    # A completion may have no new tokens, if its answer is about its prompt: which is not plain.
    given = ChatRequest.model_fields[name] if name == "max_tokens" else declared
    hint = _quick(given.annotation, tuple(given.metadata))
    return (name, hint) if declared.is_required() else (name, hint, declared.default)


def _quick(hint: Any, metadata: tuple[Any, ...] = ()) -> Any:
    """The type by which msgspec accepts nothing that pydantic refuses by ``hint``. Raises TypeError for other hints."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _quick(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, UnionType):
        parts = [_quick(one, () if one is type(None) else metadata) for one in arguments]
        # msgspec reads any number as a float, and has no union of the two.
        if {int, float} <= {_plain_type(one) for one in parts}:
            parts = [one for one in parts if _plain_type(one) is not int]
        return Union[tuple(parts)]  # noqa: UP007
    if origin is list:
        return _bounded(list[_quick(arguments[0])], metadata)  # type: ignore[misc]
    if origin is dict:
        return _bounded(dict[_quick(arguments[0]), _quick(arguments[1])], metadata)  # type: ignore[misc]
    if origin is Literal or hint in (str, int, float, bool, type(None)):
        return _bounded(hint, metadata)
    raise TypeError(f"no plain body can have a {hint}")


def _plain_type(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _bounded(hint: Any, metadata: tuple[Any, ...]) -> Any:
    bounds: dict[str, Any] = {}
    for one in metadata:
        for rule in one.metadata if isinstance(one, FieldInfo) else (one,):
            if type(rule) in _BOUNDS:
                name = _BOUNDS[type(rule)]
                bounds[name] = getattr(rule, name)
            elif rule is not AS_WHOLE and not isinstance(rule, Strict | FailFast):  # msgspec is strict, and fails fast
                raise TypeError(f"msgspec knows no {rule!r}")
    if hint is int and "lt" in bounds:  # msgspec's bounds have 64 bits
        bounds["le"] = bounds.pop("lt") - 1
    return Annotated[hint, Meta(**bounds)] if bounds else hint


_PlainChat = _plain_kind(ChatRequest, _Chat, "max_completion_tokens", "add_generation_prompt", "documents")
_PlainCompletion = _plain_kind(CompletionRequest, _Body, "prompt")

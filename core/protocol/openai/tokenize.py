"""What clients may send to ``/tokenize`` and ``/detokenize``, with vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, StrictBool, StrictStr, ValidationError

from baton_serve.core.protocol.openai.messages import Message
from baton_serve.core.protocol.openai.objects import StrictObject, without_nulls
from baton_serve.core.protocol.openai.requests import TokenId, blame
from baton_serve.core.protocol.openai.templates import TemplateFields


class _Tokenizing(StrictObject):
    #: May be missing, because a worker serves one model.
    model: StrictStr | None = None


class TokenizeText(_Tokenizing):
    """A text."""

    prompt: StrictStr
    #: Whether the tokenizer puts its own tokens around the text.
    add_special_tokens: StrictBool = True
    #: Whether the answer has the vocabulary's entries beside their ids.
    return_token_strs: StrictBool = False


class TokenizeChat(TemplateFields, _Tokenizing):
    """A conversation."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    add_special_tokens: StrictBool = False
    return_token_strs: StrictBool = False


class Detokenize(_Tokenizing):
    """Tokens."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class Tokens(BaseModel):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    """The answer of ``/detokenize``."""

    prompt: str


T = TypeVar("T", TokenizeText, TokenizeChat, Detokenize)


def validate_tokenizing(kind: type[T], body: dict[str, Any]) -> T:
    """Check a parsed body; raises BadRequestError that names the parameter at fault."""
    try:
        request = kind.model_validate(without_nulls(body))
    except ValidationError as error:
        raise blame(error, body) from None
    if isinstance(request, TokenizeChat):
        request.check_template(request.messages)
    return request

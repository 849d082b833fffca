"""One request for the number of a prompt's tokens: a worker is asked for the tokens of the same chat. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from baton_serve.core.protocol.openai.tokenize import TokenizeChat, validate_tokenizing
from baton_serve.router.dialects.chat_answers import Count, decoded
from baton_serve.router.dialects.messages.chat import NAMES, prompt_of
from baton_serve.router.dialects.messages.request import CountRequest, read
from baton_serve.router.dialects.port import NO_DEFAULTS
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.endpoints import COUNT_TOKENS, TOKENIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_serve.router.dialects.port import EventWriter


class _Tokens(msgspec.Struct):
    """The part of the worker's answer that counts."""

    count: Count


_decoder = msgspec.json.Decoder(_Tokens)


class CountTranslation:
    """Implements ``Translation``."""

    hides_reasoning = False

    def __init__(self, body: dict[str, Any], _request_id: str, _defaults: Mapping[str, float] = NO_DEFAULTS) -> None:
        """Raises ApiError."""
        request = read(CountRequest, body)
        self.body = prompt_of(request)
        with NAMES.applied():
            validate_tokenizing(TokenizeChat, self.body)
        self.asked = ClientRequest(
            chat=False,
            model=request.model,
            stream=False,
            include_usage=False,
            max_new_tokens=None,
            priority=0,
            user="",
            path=TOKENIZE.path,
            passed_on=True,
        )
        self.asked.splits = False
        self.asked.asked_at = COUNT_TOKENS.path

    def whole(self, answer: bytes) -> bytes:
        """See ``Translation``."""
        return orjson.dumps({"input_tokens": decoded(_decoder, answer).count})

    def writer(self) -> EventWriter:
        """Never called: there is no stream."""
        raise NotImplementedError

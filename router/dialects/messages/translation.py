"""A request for a message, or for the number of a prompt's tokens: its chat, and what is made of the answer. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.passed_on import PassedOn
from baton_serve.core.protocol.openai.requests import ChatRequest, validate
from baton_serve.core.protocol.openai.tokenize import TokenizeChat, validate_tokenizing
from baton_serve.router.dialects.chat_answers import Count, decoded
from baton_serve.router.dialects.messages.answer import MessageObject
from baton_serve.router.dialects.messages.chat import NAMES, chat_of, prompt_of
from baton_serve.router.dialects.messages.request import CountRequest, MessagesRequest
from baton_serve.router.dialects.objects import checked
from baton_serve.router.dialects.parts import whole_answer
from baton_serve.router.dialects.port import Translation
from baton_serve.router.request.client_request import CHAT_PATH, ClientRequest
from baton_serve.router.request.endpoints import COUNT_TOKENS, MESSAGES, TOKENIZE


class MessageTranslation(Translation):
    """Translates a request for a message."""

    def __init__(self, body: dict[str, Any], request_id: str, _defaults: object = None) -> None:
        """Raises ApiError."""
        request = checked(MessagesRequest, body)
        _check_budget(request)
        self.body = chat_of(request)
        with NAMES.applied():
            chat = validate(ChatRequest, self.body)
        self.asked = ClientRequest(chat, CHAT_PATH)
        self.asked.asked_at = MESSAGES.path
        self.hides_reasoning = request.thinking is not None and request.thinking.display == "omitted"
        edits_context = request.context_management is not None
        self._message = MessageObject(request.model, request_id, edits_context=edits_context)

    def whole(self, answer: bytes) -> bytes:
        _, parts, ending = whole_answer(answer, hides_reasoning=self.hides_reasoning)
        return orjson.dumps(self._message.ended(parts, ending))

    def writer(self) -> MessageObject:
        return self._message


def _check_budget(request: MessagesRequest) -> None:
    budget = None if request.thinking is None else request.thinking.budget_tokens
    if budget is not None and budget >= request.max_tokens:
        raise BadRequestError(
            f"'thinking.budget_tokens' is {budget}, and has to be less than 'max_tokens'.",
            param="thinking.budget_tokens",
            code="invalid_value",
        )


class _Tokens(msgspec.Struct):
    """The part of the worker's answer that counts."""

    count: Count


_decoder = msgspec.json.Decoder(_Tokens)


class CountTranslation(Translation):
    """Translates a request for the number of tokens, which is never streamed."""

    def __init__(self, body: dict[str, Any], _request_id: str, _defaults: object = None) -> None:
        """Raises ApiError."""
        request = checked(CountRequest, body)
        self.body = prompt_of(request)
        with NAMES.applied():
            validate_tokenizing(TokenizeChat, self.body)
        self.asked = ClientRequest(PassedOn(model=request.model), TOKENIZE.path)
        self.asked.splits = False
        self.asked.asked_at = COUNT_TOKENS.path

    def whole(self, answer: bytes) -> bytes:
        return orjson.dumps({"input_tokens": decoded(_decoder, answer).count})

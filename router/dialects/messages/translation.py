"""One request for a message: the chat that it becomes, and the message that the chat's answer becomes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, validate
from baton_serve.router.dialects.messages.answer import MessageObject
from baton_serve.router.dialects.messages.chat import NAMES, chat_of
from baton_serve.router.dialects.messages.events import MessageEvents
from baton_serve.router.dialects.messages.request import MessagesRequest, read
from baton_serve.router.dialects.port import NO_DEFAULTS
from baton_serve.router.dialects.whole import whole_answer
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.request.endpoints import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping


class MessageTranslation:
    """Implements ``Translation``."""

    def __init__(self, body: dict[str, Any], request_id: str, _defaults: Mapping[str, float] = NO_DEFAULTS) -> None:
        """Raises ApiError."""
        request = read(MessagesRequest, body)
        _check_budget(request)
        self.body = chat_of(request)
        with NAMES.applied():
            chat = validate(ChatRequest, self.body)
        self.asked = ClientRequest.of(chat, chat=True)
        self.asked.show(chat)
        self.asked.asked_at = MESSAGES.path
        self.hides_reasoning = request.thinking is not None and request.thinking.display == "omitted"
        edits_context = request.context_management is not None
        self._message = MessageObject(request.model, request_id, edits_context=edits_context)

    def whole(self, answer: bytes) -> bytes:
        """See ``Translation``."""
        found = whole_answer(answer, hides_reasoning=self.hides_reasoning)
        return orjson.dumps(self._message.ended(found.parts, found.ending))

    def writer(self) -> MessageEvents:
        """See ``Translation``."""
        return MessageEvents(self._message)


def _check_budget(request: MessagesRequest) -> None:
    budget = None if request.thinking is None else request.thinking.budget_tokens
    if budget is not None and budget >= request.max_tokens:
        raise BadRequestError(
            f"'thinking.budget_tokens' is {budget}, and has to be less than 'max_tokens'.",
            param="thinking.budget_tokens",
            code="invalid_value",
        )

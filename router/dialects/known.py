"""The dialects, by the paths at which clients speak them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.dialects.messages.chat import NAMES
from baton_serve.router.dialects.messages.counting import CountTranslation
from baton_serve.router.dialects.messages.errors import MessagesError, error_answer
from baton_serve.router.dialects.messages.request import CountRequest, MessagesRequest
from baton_serve.router.dialects.messages.translation import MessageTranslation
from baton_serve.router.dialects.port import Dialect
from baton_serve.router.dialects.responses import translation as responses
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.request.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The header in which Anthropic's clients look for the id of their request.
_ID_HEADER = b"request-id"

DIALECTS: Mapping[str, Dialect] = {
    RESPONSES.path: Dialect(
        responses.ResponseTranslation, responses.error_answer, ResponseRequest, responses.NAMES, conversation="input"
    ),
    MESSAGES.path: Dialect(
        MessageTranslation,
        error_answer,
        MessagesRequest,
        NAMES,
        error_answer=MessagesError,
        id_header=_ID_HEADER,
    ),
    COUNT_TOKENS.path: Dialect(
        CountTranslation,
        error_answer,
        CountRequest,
        NAMES,
        error_answer=MessagesError,
        id_header=_ID_HEADER,
    ),
}

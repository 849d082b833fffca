"""The dialects, by the paths at which clients speak them, and from a request in one to the chat that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.openai.json_body import BodyLimits
from baton_serve.core.protocol.openai.passed_on import check_depth
from baton_serve.router.dialects.messages.answer import MessagesError, error_answer
from baton_serve.router.dialects.messages.chat import NAMES
from baton_serve.router.dialects.messages.request import CountRequest, MessagesRequest
from baton_serve.router.dialects.messages.translation import CountTranslation, MessageTranslation
from baton_serve.router.dialects.names import Names
from baton_serve.router.dialects.port import Translation
from baton_serve.router.dialects.responses import translation as responses
from baton_serve.router.dialects.responses.request import ResponseRequest
from baton_serve.router.pool import WorkerPool
from baton_serve.router.request.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES

if TYPE_CHECKING:
    from pydantic import BaseModel


class Dialect(NamedTuple):
    """A dialect at one path."""

    #: From a parsed body, the id of its request, and what the model samples with where a request says nothing. Raises
    #: ApiError.
    translate: Callable[[dict[str, Any], str, Mapping[str, float]], Translation]
    #: An error as the whole answer, with the id of its request.
    error: Callable[[ApiError, str], bytes]
    #: The model of bodies.
    request: type[BaseModel]
    #: The dialect's names of a chat's parameters.
    names: Names
    #: The parameter that has the messages.
    conversation: str = "messages"
    #: The model of errors; None: they have OpenAI's shape.
    error_answer: type[BaseModel] | None = None
    #: The name of one more header with the id of the request; empty: there is none.
    id_header: bytes = b""


#: The header in which Anthropic's clients look for the id of their request.
_ID_HEADER = b"request-id"

DIALECTS: Mapping[str, Dialect] = {
    RESPONSES.path: Dialect(
        responses.ResponseTranslation, ApiError.to_json, ResponseRequest, responses.NAMES, conversation="input"
    ),
    MESSAGES.path: Dialect(
        MessageTranslation, error_answer, MessagesRequest, NAMES, error_answer=MessagesError, id_header=_ID_HEADER
    ),
    COUNT_TOKENS.path: Dialect(
        CountTranslation, error_answer, CountRequest, NAMES, error_answer=MessagesError, id_header=_ID_HEADER
    ),
}
#: How much deeper a part of a body may stand in the chat, or in the answer, which repeats some of them.
_MORE_LEVELS = 4


def translated(
    pool: WorkerPool, path: str, raw: bytes, body: dict[str, Any], request_id: str, limits: BodyLimits
) -> Translation | None:
    """The translation of ``body``, parsed from ``raw``, at a path in ``DIALECTS``. Raises ApiError.

    None: only vLLM servers serve the model, or no worker does, so the request stays as it is.
    """
    model: Any = body.get("model")
    route = pool.candidates(model) if isinstance(model, str) else None
    if route is None or route.judges_bodies:
        return None
    check_depth(raw, body, _MORE_LEVELS)
    dialect = DIALECTS[path]
    with dialect.names.applied():
        limits.check_messages({"messages": body.get(dialect.conversation)})
    translation = dialect.translate(body, request_id, pool.sampling_defaults(model))
    with dialect.names.applied():
        limits.check_messages(translation.body)
        limits.check_stop(translation.body)
    return translation

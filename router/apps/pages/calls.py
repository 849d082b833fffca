"""The calls that ``front.py`` answers, as the reference of all calls has them: bodies, examples, answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, FastAPI, Request, Response

from baton_serve.core.protocol.errors import InternalError
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest
from baton_serve.router.apps.pages.answers import ANSWERS, ErrorAnswer
from baton_serve.router.dialects.known import DIALECTS
from baton_serve.router.request.client_request import CHAT_PATH, COMPLETIONS_PATH
from baton_serve.router.request.endpoints import (
    COUNT_TOKENS,
    DETOKENIZE,
    ENDPOINTS,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
    Endpoint,
)
from baton_serve.router.request.validated import PATHS

if TYPE_CHECKING:
    from pydantic import BaseModel

_MESSAGES: Final = [{"role": "user", "content": "What is the capital of France?"}]
_PAIRS: Final = {"text_1": "capital of France", "text_2": ["Paris", "Rome"]}
_RANKED: Final = {"query": "capital of France", "documents": ["Paris", "Rome"]}
#: What "Try it out" sends. ``with_models`` adds the model.
EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    CHAT_PATH: {"messages": _MESSAGES, "max_tokens": 50},
    COMPLETIONS_PATH: {"prompt": "The capital of France is", "max_tokens": 50},
    RESPONSES.path: {"input": "What is the capital of France?", "max_output_tokens": 50},
    MESSAGES.path: {"messages": _MESSAGES, "max_tokens": 50},
    COUNT_TOKENS.path: {"messages": _MESSAGES},
    TOKENIZE.path: {"prompt": "The capital of France is"},
    DETOKENIZE.path: {"tokens": [1, 2, 3]},
    "/v1/embeddings": {"input": "The capital of France is Paris."},
    "/pooling": {"input": "The capital of France is Paris."},
    "/classify": {"input": "The capital of France is Paris."},
    "/score": _PAIRS,
    "/v1/score": _PAIRS,
    "/rerank": _RANKED,
    "/v1/rerank": _RANKED,
    "/v2/rerank": _RANKED,
}
#: In the schema, the answer for all statuses that an operation does not name, instead of the framework's own 422.
ERRORS: Final[dict[int | str, dict[str, Any]]] = {"default": {"model": ErrorAnswer, "description": "An error."}}
_STREAM: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/event-stream": {}}}}
#: An answer that may also be bytes: embeddings, if ``encoding_format`` asks for that.
_BYTES: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"application/octet-stream": {}}}}


def add_calls(app: FastAPI) -> None:
    """Have other methods of these paths answered 405. ``front.py`` answers POST before."""
    for path in PATHS:
        app.add_route(path, _answered_before, methods=["POST"], include_in_schema=False)


async def _answered_before(_: Request) -> Response:
    raise InternalError("not served here")


@cache
def described_calls() -> APIRouter:
    """The calls for the schema alone: nothing is served by these routes, which take FastAPI a while to make."""
    api = APIRouter(responses=ERRORS)
    _describe(api, CHAT_PATH, "openai", ChatRequest, "OpenAI's chat completions, streamed or not.", _STREAM)
    _describe(api, COMPLETIONS_PATH, "openai", CompletionRequest, "OpenAI's completions, streamed or not.", _STREAM)
    for endpoint in ENDPOINTS.values():
        # The schema of an endpoint that is passed on has what the router reads; a worker reads the rest.
        body: type[BaseModel] = endpoint.body
        responses = _STREAM if endpoint.streams else _BYTES
        if (dialect := DIALECTS.get(endpoint.path)) is not None:
            body = dialect.request
            if dialect.error_answer is not None:
                responses = {**responses, "default": {"model": dialect.error_answer, "description": "An error."}}
        _describe(api, endpoint.path, endpoint.tag, body, _about(endpoint), responses)
    return api


def with_models(document: dict[str, Any], models: list[str]) -> dict[str, Any]:
    """The document with examples that name a model which is served, so that they can be tried out."""
    model = {"model": models[0] if models else "the-model"}
    for path, example in EXAMPLES.items():
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = model | example
    return document


def _describe(
    api: APIRouter,
    path: str,
    tag: str,
    body: type[BaseModel],
    about: str,
    responses: dict[int | str, dict[str, Any]],
) -> None:
    async def never_called(body: Any) -> Any:
        """Only its signature is looked at."""

    never_called.__annotations__["body"] = body
    api.post(
        path,
        tags=[tag],
        name=path.strip("/").replace("/", "_"),
        description=about,
        response_model=ANSWERS.get(path, dict[str, Any]),
        responses=responses,
    )(never_called)


def _about(endpoint: Endpoint) -> str:
    if endpoint.is_dialect:
        return f"{endpoint.about} Of models that only vLLM serves, vLLM judges the body."
    return endpoint.about if endpoint.is_everywhere else f"{endpoint.about} For models that only vLLM serves."

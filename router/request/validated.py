"""From a parsed body to what the router acts on: strictly for Baton's workers, and leniently for vLLM's.

Where both kinds serve a model the strict rules hold, because either kind may get the request.
"""

from __future__ import annotations

from typing import Any, Final

from baton_serve.core.protocol.errors import BadRequestError, NotFoundError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.choices import take_choices
from baton_serve.core.protocol.openai.passed_on import (
    PassedOn,
    PassedOnChat,
    PassedOnCompletion,
    check_depth,
    strip,
    validate_passed_on,
)
from baton_serve.core.protocol.openai.plain import plain
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest, simplify, validate
from baton_serve.router.pool import WorkerPool
from baton_serve.router.queue.priorities import granted
from baton_serve.router.request.client_request import CHAT_PATH, COMPLETIONS_PATH, ClientRequest
from baton_serve.router.request.endpoints import ENDPOINTS, RESPONSES, Endpoint
from baton_serve.router.request.splits import why_whole

#: The paths that take a request for workers.
PATHS: Final = frozenset({CHAT_PATH, COMPLETIONS_PATH, *ENDPOINTS})
#: Fields of a body that can ask for a form.
_FORMS: Final = frozenset({"response_format", "structured_outputs", "tool_choice"})
#: Fields of ``/v1/responses`` that refer to a store: each vLLM server has its own.
_STORED: Final = ("previous_response_id", "background")


def validated(pool: WorkerPool, path: str, raw: bytes, body: dict[str, Any]) -> ClientRequest:
    """Validate ``body``, parsed from ``raw``, and change it into the form that workers are sent. Raises ApiError."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return _at(endpoint, pool, raw, body)
    model = body.get("model")
    route = pool.candidates(model) if isinstance(model, str) else None
    if route is not None and route.judges_bodies:
        return _for_vllm(path, raw, body)
    chat = path == CHAT_PATH
    found = plain(body, chat=chat)
    if found is not None:
        return ClientRequest(found, path)
    # A client's parameters are dropped, not refused: some clients send back what another router answered.
    body.pop("kv_transfer_params", None)
    choices = take_choices(body, chat=chat)
    request = validate(ChatRequest, body) if chat else validate(CompletionRequest, body)
    simplify(request, body)
    asked = ClientRequest(request, path)
    if request.is_about_prompt:
        asked.splits, asked.is_about_prompt = False, True
    if choices is not None:
        asked.choices, asked.logprobs = choices, request.num_logprobs is not None
    return asked


def set_priority(asked: ClientRequest, header: int | None, client_priority: str, body: dict[str, Any]) -> None:
    """Give the request the priority in the header, which has been granted, else what is granted of the body's.

    ``header`` None: there is none. ``client_priority``: the router's setting.

    Baton's engines also order by the priority. vLLM is not told the header's, because vLLM refuses a priority unless it
    is started with ``--scheduling-policy priority``; a client that knows that puts the priority into the body.
    """
    in_body = granted(client_priority, asked.priority)
    priority = in_body if header is None else header
    if asked.passed_on:
        if in_body != asked.priority:
            del body["priority"]  # without one vLLM takes 0, and more urgent than 0 is nothing that was granted
    elif priority != asked.priority:
        body["priority"] = priority
    asked.priority = priority


def may_have_form(asked: ClientRequest, body: dict[str, Any]) -> bool:
    """Whether a worker of Baton's may have to compile a form for its answer."""
    return not (asked.passed_on or _FORMS.isdisjoint(body))


def _for_vllm(path: str, raw: bytes, body: dict[str, Any]) -> ClientRequest:
    """A chat or a completion."""
    kind: type[PassedOn] = PassedOnChat if path == CHAT_PATH else PassedOnCompletion
    check_depth(raw, body)
    asked = ClientRequest(validate_passed_on(kind, body), path)
    strip(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        body["prompt"] = prompt[0]  # means the same, and all later code sees one prompt
    asked.splits = why_whole(body) is None
    return asked


def _at(endpoint: Endpoint, pool: WorkerPool, raw: bytes, body: dict[str, Any]) -> ClientRequest:
    """A request that goes whole to one worker, which for most endpoints has to be a vLLM server."""
    check_depth(raw, body)
    asked = ClientRequest(validate_passed_on(endpoint.body, body), endpoint.path)
    if not asked.model:
        asked.model = _the_model(pool, endpoint)
    if not (pool.route(asked.model).judges_bodies or endpoint.is_everywhere):
        raise NotFoundError(
            f"'{endpoint.path}' is for models that only vLLM servers serve, and '{excerpt(asked.model)}' is none.",
            param="model",
            code="not_supported",
        )
    if endpoint is RESPONSES:
        _check_not_stored(body)
    strip(body)
    asked.stream = endpoint.streams and asked.stream
    asked.splits = asked.ends_with_done = False
    return asked


def _the_model(pool: WorkerPool, endpoint: Endpoint) -> str:
    """The model of a body that names none: the only one that has the endpoint, not counting adapters."""
    names: dict[str, str] = {}
    for model in pool.models():
        route, facts = pool.candidates(model), pool.facts(model)
        if route is not None and (route.judges_bodies or endpoint.is_everywhere) and not facts.parent:
            names.setdefault(facts.root or model, model)  # one model may be served under several names
    if len(names) != 1:
        raise BadRequestError("Missing required parameter: 'model'.", param="model", code="missing_required_parameter")
    return next(iter(names.values()))


def _check_not_stored(body: dict[str, Any]) -> None:
    for name in _STORED:
        if body.get(name) not in (None, False):
            raise BadRequestError(
                f"'{name}' is not supported here: it needs a store of responses, and each vLLM server has its own. "
                "Send the whole conversation in 'input'.",
                param=name,
                code="unsupported_parameter",
            )

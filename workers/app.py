"""Builds what a worker's public and internal ports serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from baton_serve.core.net.access.hosts import Hosts, hosts_of
from baton_serve.core.net.access.unguarded import Unguarded
from baton_serve.core.net.error_pages import use_error_pages
from baton_serve.core.net.served.body import BodyBudget, BodyReader
from baton_serve.core.protocol.errors import ApiError, BadRequestError, InternalError, NotFoundError
from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.api import Engine
from baton_serve.workers.leases.engine_leases import EngineLeases
from baton_serve.workers.limits import limits_with_hand_off, with_hand_off
from baton_serve.workers.server.access import Access
from baton_serve.workers.server.answers.job import JobFactory
from baton_serve.workers.server.answers.prompts import Prompts
from baton_serve.workers.server.answers.serving import Serving
from baton_serve.workers.server.answers.tokenizing import Tokenizing
from baton_serve.workers.server.calls import WorkerCalls
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import WorkerMetrics
from baton_serve.workers.server.pages.public import WorkerHealth, pages
from baton_serve.workers.settings import WorkerSettings
from baton_serve.workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from baton_serve.workers.server.answers.job import HoldGrammar
    from baton_serve.workers.server.calls import Endpoint


def create_public_app(
    settings: WorkerSettings,
    *,
    engine: Engine,
    leases: EngineLeases,
    tokenizer: Tokenizer,
    identity: Identity,
    access: Access,
    health: WorkerHealth,
    metrics: WorkerMetrics,
    load: Callable[[], WorkerLoad],
    hold_grammar: HoldGrammar,
    on_change: Callable[[], None] = lambda: None,
) -> tuple[ASGIApp, WorkerCalls]:
    """What the public port serves: calls are requests with a body, and the application has all others.

    ``hold_grammar``: see ``JobFactory``.
    ``load`` returns what ``/load`` answers.
    ``on_change`` is called whenever a request begins or ends.
    The settings bound the body of a client; the hand-off that a router adds is allowed on top.
    """
    hosts, limits = local_hosts(settings, settings.host), settings.body_limits
    app = _app("Baton worker")
    app.include_router(pages(identity, health, load, metrics))
    prompts = Prompts(tokenizer, identity.max_model_len, allow_chat_template=settings.allow_chat_template)
    jobs = JobFactory(identity, tokenizer, prompts, hold_grammar)
    serving = Serving(engine, leases, identity, metrics, on_change)
    max_body_bytes = with_hand_off(settings.max_body_bytes, identity.max_model_len)
    bodies = BodyReader(max_body_bytes, BodyBudget(settings.max_bodies_bytes))
    tokenizing = Tokenizing(identity, tokenizer, prompts, limits)
    generating = jobs, limits_with_hand_off(limits, identity.max_model_len)
    endpoints: dict[str, Endpoint] = {
        "/v1/chat/completions": serving.endpoint(ChatRequest, *generating),
        "/v1/completions": serving.endpoint(CompletionRequest, *generating),
        "/tokenize": tokenizing.tokenize,
        "/detokenize": tokenizing.detokenize,
    }
    for path in endpoints:  # so that the framework answers other methods there 405
        app.router.routes.append(Route(path, _not_here, methods=["POST"]))
    return guarded(app, hosts), WorkerCalls(endpoints, access, bodies, settings.body_timeout_s, hosts)


def create_internal_app(*routers: APIRouter) -> FastAPI:
    """The application for routers and other workers: the internal pages, the handshake and the proof of the token."""
    app = _app("Baton worker, internal")
    for router in routers:
        app.include_router(router)
    return app


def local_hosts(settings: WorkerSettings, bound: str) -> Hosts | None:
    """The names by which the port bound to ``bound`` may be called, if it is guarded by them alone: without a token.

    With a token no check is needed: pages that do not require it are meant for probes and scrapers under any name.
    """
    if settings.internal_token is not None:
        return None
    return hosts_of(bound, settings.advertised(bound), settings.allowed_hosts)


def guarded(app: ASGIApp, hosts: Hosts | None) -> ASGIApp:
    """``app``, but with ``hosts`` its ``Host`` header and page are checked."""
    return app if hosts is None else Unguarded(app, hosts)


def _app(title: str) -> FastAPI:
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    use_error_pages(app, invalid=_invalid, framework=_framework, bug=_bug)
    return app


def _invalid(_: RequestValidationError) -> ApiError:
    return BadRequestError("The request is not valid.", code="invalid_value")


def _framework(_: Request, error: HTTPException) -> ApiError:
    if error.status_code == 404:
        return NotFoundError("There is nothing at this path.", code="not_found")
    failure = BadRequestError(error.detail)
    failure.status = error.status_code
    return failure


def _bug(_: Request) -> ApiError:
    return InternalError("The worker made a mistake; its log says more.")


async def _not_here(request: Request) -> NoReturn:
    raise InternalError("not served here")

"""Builds the two ASGI applications of a worker: for the public and for the internal port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import Route

from core.net.access.hosts import hosts_of
from core.net.access.unguarded import Unguarded
from core.net.served.body import BodyBudget, BodyReader
from core.protocol.openai.requests import ChatRequest, CompletionRequest
from workers.limits import limits_with_hand_off, with_hand_off
from workers.server.answers.endpoint import GenerateEndpoint
from workers.server.answers.job import JobFactory
from workers.server.answers.prompts import Prompts
from workers.server.answers.serving import Serving
from workers.server.answers.tokenizing import Tokenizing, TokenizingEndpoint
from workers.server.error_pages import use_our_errors
from workers.server.hot_endpoints import HotEndpoints
from workers.server.pages.internal import internal_pages
from workers.server.pages.public import WorkerHealth, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastapi import APIRouter
    from starlette.types import ASGIApp

    from core.protocol.openai.json_body import BodyLimits
    from core.protocol.worker import WorkerLoad
    from workers.server.access import Access
    from workers.server.identity import Identity
    from workers.server.metrics import WorkerMetrics
    from workers.server.pages.internal import PeerLook
    from workers.server.ports import Grammars, LeaseControl, ServedEngine
    from workers.settings import WorkerSettings
    from workers.text.tokenizer import Tokenizer


def create_public_app(
    *,
    engine: ServedEngine,
    leases: LeaseControl,
    tokenizer: Tokenizer,
    identity: Identity,
    access: Access,
    health: WorkerHealth,
    metrics: WorkerMetrics,
    load: Callable[[], WorkerLoad],
    max_body_bytes: int,
    max_bodies_bytes: int,
    body_timeout_s: float,
    limits: BodyLimits,
    grammars: Grammars | None = None,
    allow_chat_template: bool = False,
    on_change: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """The application for clients and routers. No framework code runs for a ``POST`` to the two hot endpoints.

    ``grammars`` compiles what structured output follows; None: it is refused.
    ``load`` returns what ``/load`` answers.
    ``on_change`` is called whenever a request begins or ends.
    ``max_body_bytes`` and ``limits`` bound the body of a client; the hand-off that a router adds is allowed on top.
    """
    app = FastAPI(title="Baton worker", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    use_our_errors(app)
    app.include_router(pages(identity, health, load, metrics))
    prompts = Prompts(tokenizer, identity.max_model_len, allow_chat_template=allow_chat_template)
    jobs = JobFactory(identity, tokenizer, prompts, grammars)
    serving = Serving(engine, leases, identity, metrics, on_change)
    bodies = BodyReader(with_hand_off(max_body_bytes, identity.max_model_len), BodyBudget(max_bodies_bytes))
    tokenizing = Tokenizing(identity, tokenizer, prompts)
    for path, work in (("/tokenize", tokenizing.tokenize), ("/detokenize", tokenizing.detokenize)):
        endpoint = TokenizingEndpoint(work, access, bodies, body_timeout_s, limits)
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    limits = limits_with_hand_off(limits, identity.max_model_len)
    generating = jobs, serving, access, bodies, body_timeout_s, limits
    hot: dict[str, ASGIApp] = {
        "/v1/chat/completions": GenerateEndpoint(ChatRequest, *generating),
        "/v1/completions": GenerateEndpoint(CompletionRequest, *generating),
    }
    for path, app_of_path in hot.items():  # so that the framework refuses other methods there
        app.router.routes.append(Route(path, app_of_path, methods=["POST"]))
    return HotEndpoints(hot, app)


def create_internal_app(
    *,
    engine: ServedEngine,
    leases: LeaseControl,
    access: Access,
    health: WorkerHealth,
    drain: Callable[[], None],
    resume: Callable[[], bool],
    load: Callable[[], WorkerLoad],
    peers: PeerLook = dict,
    routers: Iterable[APIRouter] = (),
) -> FastAPI:
    """The application for routers and other workers.

    ``peers`` returns the state of the remote engines. ``routers`` are further routes, such as the handshake.
    """
    app = FastAPI(
        title="Baton worker, internal", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    use_our_errors(app)
    app.include_router(internal_pages(engine, leases, access, health, drain, resume, load, peers))
    for router in routers:
        app.include_router(router)
    return app


def guarded(app: ASGIApp, settings: WorkerSettings, bound: str) -> ASGIApp:
    """``app`` for the port bound to ``bound``. Without an internal token, its ``Host`` header and page are checked.

    With a token no check is needed: pages that do not require it are meant for probes and scrapers under any name.
    """
    if settings.internal_token is not None:
        return app
    return Unguarded(app, hosts_of(bound, settings.advertised(bound), settings.allowed_hosts))

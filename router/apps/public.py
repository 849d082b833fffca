"""``create_app`` builds the whole HTTP application. Importing this module does nothing."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from baton_serve.core.leases.store import LeaseStore
from baton_serve.core.process.version import version
from baton_serve.core.protocol.errors import NotFoundError, no_such_model
from baton_serve.router.admin import LocalRouter, admin_router
from baton_serve.router.apps.group_metrics import group_families
from baton_serve.router.apps.pages.calls import ERRORS, add_calls
from baton_serve.router.apps.pages.home import home_routes
from baton_serve.router.apps.pages.reference import reference_routes
from baton_serve.router.dashboard.live import LiveSnapshots
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.routes import dashboard_router
from baton_serve.router.dashboard.share import local_share
from baton_serve.router.edge.auth import AdminKeys, BearerKeys
from baton_serve.router.edge.error_pages import use_our_errors
from baton_serve.router.front import Front
from baton_serve.router.parts import Requests, Workers
from baton_serve.router.peers.port import PeerRouters
from baton_serve.router.pool import WorkerPool
from baton_serve.router.pool.missing import MissingWorkers
from baton_serve.router.pool.readiness import ReadyStatus
from baton_serve.router.request.active import ActiveRequests
from baton_serve.router.settings import RouterSettings
from baton_serve.router.steps.intake import Intake


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: str = "model"
    created: int = Field(description="When a worker loaded it, Unix seconds.")
    owned_by: str = "baton"
    root: str = Field(description="What it was loaded from.")
    parent: str | None = Field(None, description="Of an adapter (LoRA): the model that it is for.")
    max_model_len: int | None = Field(description="Tokens of prompt and answer together; null: no worker has said.")
    sampling_defaults: dict[str, int | float] | None = Field(
        description="What is sampled with where a request says nothing, as the model's makers recommend; a parameter "
        "that is not here has the API's own default. null: no worker has said."
    )


class ModelList(BaseModel):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """``GET /health``: the router process lives; what it can serve now."""

    status: str = "ok"
    version: str
    models: list[str]
    workers: int
    reachable_workers: int
    missing_workers: list[str] | None = Field(
        [], description="Workers that baton up cannot start, or starts again just now; null: that is not known."
    )
    lost_workers: list[str] = Field(
        description="Ids of workers that left without draining, for an hour or until they are back, and of those that "
        "cannot be reached."
    )
    requests: int


class Version(BaseModel):
    """``GET /version``."""

    version: str


class Load(BaseModel):
    """``GET /load``."""

    server_load: int = Field(description="Requests that have come and are not over.")


_ABOUT = (
    "Point the base URL of a client for OpenAI's API at `/v1` here, of one for Anthropic's at `/`. "
    "A prompt is computed by a prefill worker; a decode worker with room is chosen when that is done. "
    "The examples name a model that is served now: *Try it out* sends them as they are."
)
_TAGS = [
    {"name": "openai", "description": "OpenAI's API: chats, completions, responses, models."},
    {"name": "anthropic", "description": "Anthropic's API: messages."},
    {"name": "tokens", "description": "Tokens of texts, and texts of tokens, with vLLM's names."},
    {"name": "vllm", "description": "What only vLLM serves. Its own reference describes the bodies and the answers."},
    {"name": "process", "description": "The state of this router, for load balancers and for Prometheus."},
    {"name": "admin", "description": "For operators: list, abort, drain. Asks for the admin token where there is one."},
]
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


def create_app(
    settings: RouterSettings,
    workers: Workers,
    requests: Requests,
    peers: PeerRouters,
    intake: Intake,
    here: LocalRouter,
    numbers: Collector,
    store: LeaseStore,
    recorder: HistoryRecorder,
) -> Front:
    """Build the application, of which a process has one.

    ``here`` and ``numbers`` are this router's, ``recorder`` keeps the history for the dashboard.
    """
    keys = BearerKeys(settings.api_keys)
    admin_keys = AdminKeys(settings.admin_token, reachable=settings.serves_admin)
    # The framework's own pages are off, because they load scripts from other sites. ``pages`` has Baton's.
    app = FastAPI(
        title="Baton",
        description=_ABOUT,
        openapi_tags=_TAGS,
        version=version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    use_our_errors(app)
    _add_models(app, workers.pool, keys)
    _add_process(app, workers, requests.active, MissingWorkers(settings.missing_file))
    _add_metrics(app, numbers, peers)
    add_calls(app)
    _add_stored_responses(app, keys)
    app.include_router(home_routes())
    app.include_router(
        reference_routes(
            app,
            keys,
            workers.pool.models,
            has_keys=bool(settings.api_keys),
            has_admin_token=settings.admin_token is not None,
        )
    )
    app.include_router(admin_router(here, workers, peers, store, admin_keys, only_tls=settings.speaks_internal_tls))
    front = Front(settings, intake, requests, workers.pool, peers.router_id, keys, admin_keys, app)
    share = partial(local_share, workers, requests, recorder)
    snapshots = LiveSnapshots(share, peers, recorder, settings.lease_duration_ms)
    app.include_router(dashboard_router(snapshots, admin_keys, lambda: front.closing))
    return front


def _add_models(app: FastAPI, pool: WorkerPool, keys: BearerKeys) -> None:
    started = int(time.time())

    def card(model: str) -> ModelCard:
        facts = pool.facts(model)
        return ModelCard(
            id=model,
            created=facts.created or started,
            root=facts.root or model,
            parent=facts.parent or None,
            max_model_len=facts.max_model_len or None,
            sampling_defaults=facts.sampling_defaults,
        )

    @app.get("/v1/models", tags=["openai"], dependencies=[Depends(keys.guard)])
    async def models() -> ModelList:
        """All served models."""
        return ModelList(data=[card(model) for model in pool.models()])

    @app.get("/v1/models/{model:path}", tags=["openai"], dependencies=[Depends(keys.guard)])
    async def model_card(model: str) -> ModelCard:
        """One model."""
        if model not in pool.models():
            raise no_such_model(model)
        return card(model)


def _add_process(app: FastAPI, workers: Workers, active: ActiveRequests, missing: MissingWorkers) -> None:
    @app.get("/health", tags=["process"])
    async def health() -> Health:
        """200 while the process serves."""
        return _health(workers, active, missing)

    @app.get("/ready", tags=["process"], responses={503: {"model": Health}})
    async def ready(response: Response) -> Health:
        """For load balancers: 200 while at least one model can be served, else 503. A router that has just started also
        answers 503 until a prefill worker has come.
        """
        state = _health(workers, active, missing)
        state.status = workers.readiness.state()
        if state.status != ReadyStatus.OK:
            response.status_code = 503
        return state

    @app.get("/version", tags=["process"])
    async def version_page() -> Version:
        """The version of this software."""
        return Version(version=version())

    @app.get("/ping", tags=["process"], response_class=Response)
    @app.post("/ping", tags=["process"], response_class=Response)
    async def ping() -> Response:
        """200 while the process serves, as /health."""
        return Response()


def _add_metrics(app: FastAPI, numbers: Collector, peers: PeerRouters) -> None:
    @app.get("/load", tags=["process"])
    async def load() -> Load:
        """How many requests there are, over all processes that share this port."""
        families = await group_families(numbers, peers)
        live = (family for family in families.metrics if family.name == "baton_router_requests")
        return Load(server_load=sum(int(sample.value) for family in live for sample in family.samples))

    @app.get("/metrics", tags=["process"], response_class=Response, responses=_TEXT)
    async def metrics() -> Response:
        """Prometheus text, summed over all processes that share this port."""
        return Response(generate_latest(await group_families(numbers, peers)), media_type=CONTENT_TYPE_LATEST)


def _health(known: Workers, active: ActiveRequests, missing: MissingWorkers) -> Health:
    workers = list(known.pool)
    return Health(
        version=version(),
        models=known.pool.models(),
        workers=len(workers),
        reachable_workers=sum(worker.is_reachable for worker in workers),
        missing_workers=missing.names(),
        lost_workers=[one.id for one in known.lost.all()]
        + [one.worker_id for one in workers if not one.standing.healthy],
        requests=len(active),
    )


def _add_stored_responses(app: FastAPI, keys: BearerKeys) -> None:
    """Say why there is nothing below the path of responses. Each vLLM server has its own store, and forgets it when it
    ends.
    """

    @app.api_route(
        "/v1/responses/{below:path}",
        methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        dependencies=[Depends(keys.guard)],
        include_in_schema=False,
    )
    async def stored_response(below: str) -> None:
        """Always 404. To cancel a response, close the connection that it comes on."""
        raise NotFoundError(
            "Responses are not kept here: send the whole conversation in 'input' of POST /v1/responses.",
            code="not_supported",
        )

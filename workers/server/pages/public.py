"""The pages of the public port: models, health, load, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson
from fastapi import APIRouter, Response

from baton_serve.core.net.error_pages import error_response
from baton_serve.core.protocol.errors import UnavailableError, no_such_model
from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import CONTENT_TYPE, WorkerMetrics

_JSON = "application/json"


class WorkerHealth:
    """Whether the worker accepts requests."""

    def __init__(self, load: Callable[[], WorkerLoad]) -> None:
        self._load = load
        self._failure: str | None = None

    def fail(self, why: str) -> None:
        """Answer 503 from now on: the engine is dead, and the process is about to end."""
        self._failure = why

    def response(self) -> Response:
        """200 while requests are accepted, otherwise 503 with ``draining`` or ``engine_dead``."""
        if self._failure is not None:
            return error_response(UnavailableError(self._failure, code="engine_dead"))
        if self._load().draining:
            return error_response(UnavailableError("The worker is draining.", code="draining"))
        return Response(b'{"status":"ok"}', media_type=_JSON)


def pages(
    identity: Identity, health: WorkerHealth, load: Callable[[], WorkerLoad], metrics: WorkerMetrics
) -> APIRouter:
    """``GET /v1/models[/{model}]``, ``/health`` (or ``HEAD``), ``/load``, ``/metrics``."""
    router = APIRouter()
    cards = _cards(identity)

    @router.get("/v1/models")
    async def models() -> Response:
        return Response(orjson.dumps({"object": "list", "data": [*cards.values()]}), media_type=_JSON)

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        if model not in cards:
            raise no_such_model(model)
        return Response(orjson.dumps(cards[model]), media_type=_JSON)

    @router.head("/health")
    @router.get("/health")
    async def health_page() -> Response:
        return health.response()

    @router.get("/load")
    async def load_page() -> Response:
        return Response(msgspec.json.encode(load()), media_type=_JSON)

    @router.get("/metrics")
    async def metrics_page() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return router


def _cards(identity: Identity) -> dict[str, dict[str, Any]]:
    """The cards of the model and of its adapters, as vLLM's servers show them."""
    same = {"object": "model", "created": identity.created, "owned_by": "baton"}
    own = {"max_model_len": identity.max_model_len, "sampling_defaults": identity.defaults.given}
    cards = {identity.model: {"id": identity.model, **same, "root": identity.root, "parent": None, **own}}
    for name, adapter in identity.adapters.items():
        cards[name] = {"id": name, **same, "root": adapter.root, "parent": identity.model, **own}
    return cards

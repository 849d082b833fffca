"""Fixtures: a router without workers, with the settings that a mark says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton_serve.router.settings import RouterSettings
from baton_serve.router.telemetry.tracing.provider import Tracing
from tests.kits.router.cluster import Cluster, make_settings
from tests.kits.router.process import Announced


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> RouterSettings:
    """The usual ones, but for what the nearest mark ``settings`` says: of the test, else its class, else its module."""
    mark = request.node.get_closest_marker("settings")
    return make_settings() if mark is None else make_settings(**mark.kwargs)


@pytest_asyncio.fixture
async def cluster(settings: RouterSettings) -> AsyncIterator[Cluster]:
    """A router without workers."""
    made = Cluster(settings)
    await made.start()
    try:
        yield made
    finally:
        with contextlib.suppress(ConnectionError):
            await made.close()


@pytest.fixture
def exporter(cluster: Cluster) -> Iterator[InMemorySpanExporter]:
    """The cluster's router is traced, into memory."""
    made = InMemorySpanExporter()
    tracing = Tracing([SimpleSpanProcessor(made)], {})
    cluster.front.trace_with(tracing)
    yield made
    tracing.close()


@pytest_asyncio.fixture
async def announced(redis_url: str) -> AsyncIterator[Announced]:
    """Workers that announce themselves in Redis, for routers that are processes."""
    async with Announced(redis_url) as made:
        yield made

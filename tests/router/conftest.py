"""Fixtures: a router without workers, with the settings that a mark says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, make_settings


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

"""Fixtures: a router without workers, its settings to be overridden."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton_serve.router.settings import RouterSettings
from tests.kits.router.cluster import Cluster, make_settings


@pytest.fixture
def settings() -> RouterSettings:
    """Override in a module or class to change them."""
    return make_settings()


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

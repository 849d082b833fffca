"""The stack that most end-to-end tests share: one P, one D, one worker doing both, one router, float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack(tmp_path_factory.mktemp("stack"), worker_flags={"dtype": "float32"}) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    flags = {"dtype": "float32"}
    async with Stack(tmp_path_factory.mktemp("both"), prefill=0, decode=0, both=1, worker_flags=flags) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for the package, because the shared stack's child processes belong to the loop that started them."""
    for item in items:
        if item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)

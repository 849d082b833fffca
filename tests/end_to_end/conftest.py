"""The stack that most end-to-end tests share: one P, one D, one worker doing both, one router, float32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.kits.whole.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FOLDER = Path(__file__).parent


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
    """One loop for this folder, because the shared stack's child processes belong to the loop that started them.

    The hook is given the items of the whole run, whatever folder its file is in.
    """
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)

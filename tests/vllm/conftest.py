"""The servers that all tests here share, and what makes them tests that need vLLM."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kits.vllm.stack import VllmStack, vllm_stack

#: Where vLLM is: a script, a Python, or the folder of an environment. ``make test-vllm`` sets it.
VARIABLE = "TEST_VLLM"
#: Seconds: a server takes minutes to start where four of them share two cores.
TIMEOUT_S = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder: it needs vLLM and patience, and the loop that the servers were started on."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmStack]:
    """Two P and two D, started when a test needs them."""
    place = os.environ.get(VARIABLE)
    if not place:
        pytest.fail(f"{VARIABLE} does not say where vLLM is; make test-vllm does")
    async with vllm_stack(tmp_path_factory.mktemp("vllm"), place) as stack:
        yield stack

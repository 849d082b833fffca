"""The stack that most end-to-end tests share: one P, one D, one worker doing both, one router, float32.

All workers have two adapters.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from baton_serve.baton.demo import MODEL_DIR
from tests.kits import tiny_adapters
from tests.kits.whole.stack import Stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import Tell

    Timed = Callable[[str], AbstractContextManager[None]]

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the demo model, with random weights, by the names under which they are served."""
    root = tmp_path_factory.mktemp("adapters")
    few = {"r": 2, "target_modules": ["q_proj", "v_proj"]}
    return {
        "tuned": tiny_adapters.build(root / "tuned", MODEL_DIR, seed=1),
        "other": tiny_adapters.build(root / "other", MODEL_DIR, seed=2, **few),
    }


def flags_with(adapters: dict[str, Path]) -> dict[str, str]:
    """Flags of workers that have these adapters."""
    return {"dtype": "float32", "lora": ",".join(f"{name}={folder}" for name, folder in adapters.items())}


@pytest.fixture
def timed(tell: Tell) -> Timed:
    """A block that says in the end how long it took."""

    @contextmanager
    def measured(what: str) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        tell(f"  {what} after {(time.perf_counter() - start_s) * 1e3:.1f} ms")

    return measured


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stack(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> AsyncIterator[Stack]:
    async with Stack(tmp_path_factory.mktemp("stack"), worker_flags=flags_with(adapters)) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def both(tmp_path_factory: pytest.TempPathFactory, adapters: dict[str, Path]) -> AsyncIterator[Stack]:
    flags = flags_with(adapters)
    async with Stack(tmp_path_factory.mktemp("both"), prefill=0, decode=0, both=1, worker_flags=flags) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="package")
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.router.url}/v1", api_key="none", max_retries=0) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for this folder, because the shared stack's child processes belong to the loop that started them.

    The hook is given the items of the whole run, whatever folder its file is in.
    """
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)

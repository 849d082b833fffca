"""Fixtures: small models, written and loaded once for all tests of a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from baton_serve.workers.rank.loading.model import ModelShard
from tests.kits import tiny_models
from tests.kits.rank.driver import Reference, load

Folders = Callable[[str], Path]
Models = Callable[..., ModelShard]
References = Callable[[str], Reference]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("models")
    return lru_cache(lambda architecture: tiny_models.build(root / architecture, architecture))


@pytest.fixture(scope="session")
def model_of(folder_of: Folders) -> Models:
    return lru_cache(
        lambda architecture, device="cpu", block_size=16, dtype="float32": load(
            folder_of(architecture), device, block_size, dtype
        )
    )


@pytest.fixture(scope="session")
def reference_of(folder_of: Folders) -> References:
    return lru_cache(lambda architecture: Reference(folder_of(architecture)))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)

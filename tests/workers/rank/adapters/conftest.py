"""Fixtures of this folder: a model with two adapters, which change other layers by other amounts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from tests.kits import tiny_adapters
from tests.kits.rank.driver import Reference, load
from tests.kits.rank.models import Folders, Models

#: The second one has another rank, another scaling, and leaves most layers as they are.
CONFIGS: dict[str, dict[str, object]] = {
    "first": {"seed": 1},
    "second": {"seed": 2, "r": 2, "use_rslora": True, "target_modules": r".*(q_proj|down_proj|c_attn)"},
}


@pytest.fixture(scope="session")
def adapters_of(folder_of: Folders, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    root = tmp_path_factory.mktemp("adapters")
    return lru_cache(
        lambda architecture: {
            name: tiny_adapters.build(root / f"{architecture}-{name}", folder_of(architecture), **config)  # type: ignore[arg-type]
            for name, config in CONFIGS.items()
        }
    )


@pytest.fixture(scope="session")
def adapted_of(folder_of: Folders, adapters_of: Callable[[str], dict[str, Path]]) -> Models:
    return lru_cache(
        lambda architecture, device="cpu", dtype="float32": load(
            folder_of(architecture), device, dtype=dtype, adapters=adapters_of(architecture)
        )
    )


@pytest.fixture(scope="session")
def peft_of(folder_of: Folders, adapters_of: Callable[[str], dict[str, Path]]) -> Callable[[str, str], Reference]:
    """Peft with the adapter of this name; with "" the model alone."""
    return lru_cache(
        lambda architecture, name: Reference(folder_of(architecture), adapters_of(architecture)[name] if name else None)
    )

"""A fixture: the path of a processor without AVX512, on every processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from baton_serve.workers.rank.native import support

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["as_here", "without_avx512"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs a test with what this processor has, and as on one without AVX512."""
    if request.param == "as_here":
        yield
        return
    if not support.has_tiles(torch.float32):
        pytest.skip("this processor has no AVX512: so it is as it is here")
    monkeypatch.setenv(support.TILES_VARIABLE, "off")
    support._can_have_tiles.cache_clear()
    yield
    support._can_have_tiles.cache_clear()

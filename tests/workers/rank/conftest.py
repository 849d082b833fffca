"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kits.rank.models import device, folder_of, model_of, reference_of

__all__ = ["device", "folder_of", "model_of", "reference_of"]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """Tests may give torch another number of threads."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)

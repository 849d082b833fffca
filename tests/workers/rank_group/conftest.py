"""Fixtures of this folder."""

from tests.kits.rank.models import device, folder_of, model_of, reference_of

__all__ = ["device", "folder_of", "model_of", "reference_of"]

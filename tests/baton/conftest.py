"""Fixtures of this folder."""

from tests.kits.baton.up_process import model_dir, start_up

__all__ = ["model_dir", "start_up"]

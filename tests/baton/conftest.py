"""Fixtures of this folder."""

from tests.kits.baton.up_process import model_dir, ready_up, start_up

__all__ = ["model_dir", "ready_up", "start_up"]

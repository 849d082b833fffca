"""Fixtures of this folder."""

from up_process import model_dir, start_up

__all__ = ["model_dir", "start_up"]

"""Fixtures of this folder."""

from tests.kits.baton.fake_vllm import vllm_environment
from tests.kits.baton.up_process import model_dir, ready_up, start_up

__all__ = ["model_dir", "ready_up", "start_up", "vllm_environment"]

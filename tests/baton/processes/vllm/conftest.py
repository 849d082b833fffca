"""Fixtures of this folder."""

from tests.kits.baton.fake_vllm import vllm_environment

__all__ = ["vllm_environment"]

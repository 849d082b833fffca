"""NIXL reads its environment when it is imported, so it is set before any test here does that."""

from baton_serve.core.ucx import apply_ucx_environment

apply_ucx_environment("127.0.0.1")

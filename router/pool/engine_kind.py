"""The kinds of engines that workers are."""

from __future__ import annotations

from enum import StrEnum


class EngineKind(StrEnum):
    """Which engine a worker is. What differs between them is in ``router/engines``."""

    BATON = "baton"
    VLLM = "vllm"
    #: Added by URL: it speaks OpenAI's API, and no more is known of it.
    PLAIN = "plain"

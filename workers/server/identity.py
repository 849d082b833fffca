"""Who this worker is, as its answers tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Fixed once the engine runs.

    ``internal_host`` and ``internal_port`` are what other engines use for the handshake; ``fingerprint`` is OpenAI's
    ``system_fingerprint``: equal on workers that may continue each other's answers.
    """

    engine_id: str
    model: str
    #: What it was loaded from, and when, Unix seconds.
    root: str
    created: int
    fingerprint: str
    vocab_size: int
    max_model_len: int
    internal_host: str
    internal_port: int
    num_ranks: int = 1

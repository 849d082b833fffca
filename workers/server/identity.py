"""The facts about a worker that its answers contain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The facts about a worker that do not change once its engine runs.

    ``internal_host`` and ``internal_port`` are where other engines ask for the handshake. ``fingerprint`` is OpenAI's
    ``system_fingerprint``, equal on workers that may continue each other's answers.
    """

    engine_id: str
    model: str
    #: The folder or hub id of the model, and when it was loaded, in Unix seconds.
    root: str
    created: int
    fingerprint: str
    vocab_size: int
    max_model_len: int
    internal_host: str
    internal_port: int
    num_ranks: int = 1

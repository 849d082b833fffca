"""The demo model: a small Llama taught questions and answers about Baton. Used by `make serve` and the tests.

``MODEL_DIR`` is a Hugging Face folder like any other.
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
#: What clients call it, unless told otherwise.
MODEL_NAME = "baton-demo"
#: The cache of a worker on CPUs that ``baton up`` gives it: room for eight of its longest conversations.
CACHE_BYTES = 256 * 2**20

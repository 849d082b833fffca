"""Which decode worker can read the blocks of which prefill worker, and in what they differ if it cannot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.router.pool.kind import Difference

if TYPE_CHECKING:
    from baton_serve.router.pool.worker import Worker


def difference(source: Worker, reader: Worker, model: str) -> Difference | None:
    """In what the two differ, so that ``reader`` cannot read ``source``'s blocks for a model. None: it can."""
    if source.kind.hand_off != reader.kind.hand_off:
        return Difference("engine: one is vLLM's, the other is not", "pair workers of one kind")
    return source.kind.difference(source, reader, model)

"""From the parsed body of a request in a dialect to the chat that it becomes, if the model has workers of Baton's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.openai.passed_on import check_depth
from baton_serve.router.dialects.known import DIALECTS

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.json_body import BodyLimits
    from baton_serve.router.dialects.port import Translation
    from baton_serve.router.pool import WorkerPool

#: How much deeper a part of a body may stand in the chat, or in the answer, which repeats some of them.
_MORE_LEVELS = 4


def translated(
    pool: WorkerPool, path: str, raw: bytes, body: dict[str, Any], request_id: str, limits: BodyLimits
) -> Translation | None:
    """The translation of ``body``, parsed from ``raw``, at a path in ``DIALECTS``. Raises ApiError.

    None: only vLLM servers serve the model, or nobody does, so the request stays as it is.
    """
    if not _has_own_workers(pool, body.get("model")):
        return None
    check_depth(raw, body, _MORE_LEVELS)
    dialect = DIALECTS[path]
    with dialect.names.applied():
        limits.check_messages({"messages": body.get(dialect.conversation)})
    translation = dialect.translate(body, request_id, pool.sampling_defaults(body["model"]))
    with dialect.names.applied():
        limits.check_messages(translation.body)
        limits.check_stop(translation.body)
    return translation


def _has_own_workers(pool: WorkerPool, model: Any) -> bool:
    """Whether not only vLLM servers serve the model; False if there is no such model."""
    route = pool.candidates(model) if isinstance(model, str) else None
    return route is not None and not route.judges_bodies

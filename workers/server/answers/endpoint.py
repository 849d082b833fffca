"""``POST /v1/chat/completions`` and ``/v1/completions``: from a body to an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from baton_serve.core.protocol.openai.json_body import parse_body
from baton_serve.core.protocol.openai.requests import R
from baton_serve.workers.server.answers.token_ids import ASKED, HEADER

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.json_body import BodyLimits
    from baton_serve.workers.server.answers.job import JobFactory
    from baton_serve.workers.server.answers.serving import Serving
    from baton_serve.workers.server.calls import Asked
    from baton_serve.workers.server.client import Client


class GenerateEndpoint(Generic[R]):
    """``Endpoint`` for bodies of one ``kind``."""

    def __init__(self, kind: type[R], jobs: JobFactory, serving: Serving, limits: BodyLimits) -> None:
        self._kind: type[R] = kind
        self._jobs = jobs
        self._serving = serving
        self._limits = limits

    async def answer(self, raw: bytes, client: Client, asked: Asked) -> None:
        """See ``Endpoint``."""
        body = parse_body(raw, self._limits)
        self._limits.check_stop(body)
        tells_token_ids = asked.headers.get(HEADER) == ASKED
        job = await self._jobs.make(
            self._kind,
            body,
            asked.request_id,
            choice=asked.choice,
            client=asked.client,
            tells_token_ids=tells_token_ids,
        )
        try:
            await self._serving.answer(job, client)
        finally:
            job.release()

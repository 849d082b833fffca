"""Endpoints with a body as plain ASGI applications, so that no framework code runs per token."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from core.net.served.body import Body, ClientGoneError
from core.net.served.connection import HAS_DEADLINE
from core.protocol.choice import HEADER as CHOICE_HEADER
from core.protocol.choice import Choice, choice_in
from core.protocol.errors import ApiError, InternalError
from core.protocol.id_syntax import REQUEST_ID
from core.protocol.openai.json_body import parse_body
from core.protocol.openai.requests import R
from workers.server.answers.token_ids import ASKED, HEADER
from workers.server.http import ConnectedClient, header

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from core.net.served.body import BodyReader
    from core.protocol.openai.json_body import BodyLimits
    from workers.server.access import Access
    from workers.server.answers.job import JobFactory
    from workers.server.answers.serving import Serving

logger = logging.getLogger(__name__)

_CHOICE = CHOICE_HEADER.encode()


class Asked(NamedTuple):
    """What the headers of a request say. ``token_ids``: the router wants the ids of the tokens of a stream."""

    request_id: str
    choice: Choice | None
    token_ids: bool


class BodyEndpoint:
    """An endpoint that takes a JSON object.

    If there is an internal token, only the router may call the endpoint. A failure is answered with a status before
    the first byte of the answer, and with an error event after that byte.
    """

    def __init__(self, access: Access, bodies: BodyReader, body_timeout_s: float, limits: BodyLimits) -> None:
        self._access = access
        self._bodies = bodies
        self._body_timeout_s = body_timeout_s
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(scope)
        client = ConnectedClient(receive, send, request_id)
        with Body(self._bodies) as body:
            try:
                self._access.check_router(scope)
                raw = await body.read(dict(scope["headers"]), receive, self._body_timeout_s)
            except ClientGoneError:
                return
            except ApiError as error:
                await client.send_error(error)
                return
            scope["state"][HAS_DEADLINE]()  # the router enforces the deadline: its client may read slowly
            async with client:
                await self._answer(raw, client, Asked(request_id, _choice(scope), header(scope, HEADER) == ASKED))
        if client.gone:
            logger.debug("request %s: the connection ended before the answer did", request_id)

    async def _run(self, body: dict[str, Any], client: ConnectedClient, asked: Asked) -> None:
        """Answer a body. Raises ApiError."""
        raise NotImplementedError

    async def _answer(self, raw: bytes, client: ConnectedClient, asked: Asked) -> None:
        try:
            await self._run(parse_body(raw, self._limits), client, asked)
        except ApiError as error:
            if error.status >= 500:
                logger.warning("request %s: %s", asked.request_id, error.message)
            await client.send_error(error)
        except Exception:
            logger.exception("request %s: a mistake of ours", asked.request_id)
            await client.send_error(InternalError("The worker made a mistake; its log says more."))


class GenerateEndpoint(BodyEndpoint, Generic[R]):
    """``POST /v1/chat/completions`` or ``/v1/completions``, by ``kind``."""

    def __init__(
        self,
        kind: type[R],
        jobs: JobFactory,
        serving: Serving,
        access: Access,
        bodies: BodyReader,
        body_timeout_s: float,
        limits: BodyLimits,
    ) -> None:
        super().__init__(access, bodies, body_timeout_s, limits)
        self._kind: type[R] = kind
        self._jobs = jobs
        self._serving = serving

    async def _run(self, body: dict[str, Any], client: ConnectedClient, asked: Asked) -> None:
        job = await self._jobs.make(
            self._kind, body, asked.request_id, choice=asked.choice, tells_token_ids=asked.token_ids
        )
        try:
            await self._serving.answer(job, client)
        finally:
            job.release()


def _choice(scope: Scope) -> Choice | None:
    """The choice that a router names; None: the request has only one."""
    given = header(scope, _CHOICE)
    return None if given is None else choice_in(given)


def _request_id(scope: Scope) -> str:
    """The request id that the router or the client has sent, or a new one."""
    given = header(scope, b"x-request-id")
    return given if given is not None and REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

"""Asks a vLLM server what it is, which models it serves, and how busy it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core.net.client.errors import AnswerTooLarge, NotHttp
from router.pool.health import read_models
from router.vllm_workers.load import read_load

if TYPE_CHECKING:
    from router.pool import Worker
    from router.pool.model_card import ModelFacts
    from router.upstream.port import Upstream
    from router.vllm_workers.load import ServerLoad

#: Most seconds to wait for each answer. The server's event loop may be busy with requests.
ASK_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 8 << 20
#: Characters of a version that are taken from an answer.
_MAX_VERSION_CHARS = 64


class NotVllmError(Exception):
    """Something answers that is not vLLM. The message says what it did."""


class EngineDeadError(Exception):
    """The server answers that its engine does not live."""


class _Version(msgspec.Struct):
    version: str


class Server:
    """The HTTP port of one vLLM server. All methods raise CallError, NotVllmError and EngineDeadError."""

    def __init__(self, upstream: Upstream, worker: Worker) -> None:
        self._upstream = upstream
        self._worker = worker

    async def version(self) -> str:
        """The version of vLLM."""
        body = await self._ask("/version")
        try:
            version = msgspec.json.decode(body, type=_Version).version
        except (ValueError, RecursionError):
            raise NotVllmError("/version does not name a version") from None
        if not version.isprintable() or len(version) > _MAX_VERSION_CHARS:
            raise NotVllmError("/version does not name a version")
        return version

    async def check_health(self) -> None:
        """Return if the engine lives."""
        await self._ask("/health")

    async def models(self) -> dict[str, ModelFacts]:
        """The models and adapters that it serves now, by name."""
        try:
            models = read_models(await self._ask("/v1/models"))
        except ValueError:
            raise NotVllmError("/v1/models has no list of models") from None
        # vLLM says of every model that it was created just now.
        return {name: msgspec.structs.replace(facts, created=0) for name, facts in models.items()}

    async def load(self) -> ServerLoad:
        """How busy it is."""
        body = await self._ask("/metrics")
        try:
            return read_load(body.decode())
        except ValueError:
            raise NotVllmError("/metrics has not vLLM's numbers") from None

    async def _ask(self, path: str) -> bytes:
        try:
            answer = await self._upstream.request("GET", self._worker.url, path, (), b"", ASK_TIMEOUT_S)
            try:
                body = await answer.read(_MAX_ANSWER_BYTES, ASK_TIMEOUT_S)
            finally:
                answer.close()
        except NotHttp:
            raise NotVllmError("no HTTP") from None
        except AnswerTooLarge:
            raise NotVllmError(f"{path} is too large") from None
        if answer.status in {500, 502, 503, 504}:
            raise EngineDeadError(f"{path} is answered with status {answer.status}")
        if answer.status in {401, 403}:
            raise NotVllmError(
                f"{path} asks for another API key than this router has for it: BATON_VLLM_API_KEYS_FILE names a file "
                "with the keys of vLLM servers"
            )
        if answer.status != 200:
            raise NotVllmError(f"{path} is answered with status {answer.status}")
        return body

"""Asks a vLLM server what it is, which models it serves, and how busy it is."""

from __future__ import annotations

import msgspec

from baton_serve.core.net.client.errors import AnswerTooLarge, NotHttp
from baton_serve.core.net.client.http_client import HttpClient
from baton_serve.router.pool import Worker
from baton_serve.router.pool.health import read_models
from baton_serve.router.pool.model_card import ModelFacts
from baton_serve.router.vllm.servers.load import MAX_PAGE_BYTES, ServerLoad, read_load

#: Most seconds to wait for each answer. The server's event loop may be busy with requests.
ASK_TIMEOUT_S = 2.0
_MAX_ANSWER_BYTES = 64 << 10
#: Most bytes of the list of models. A model of vLLM takes 0.7 KB.
_MAX_MODELS_BYTES = 1 << 20
#: Characters of a version that are taken from an answer.
_MAX_VERSION_CHARS = 64
_MAX_REASON_CHARS = 200


class NotVllmError(Exception):
    """The server is not vLLM. The message says how it answered."""


class EngineDeadError(Exception):
    """The server answers that its engine does not live."""


class _Version(msgspec.Struct):
    version: str


class Server:
    """The HTTP port of one vLLM server. All methods raise CallError, NotVllmError and EngineDeadError."""

    def __init__(self, upstream: HttpClient, worker: Worker) -> None:
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
            models = read_models(await self._ask("/v1/models", _MAX_MODELS_BYTES))
        except ValueError as error:
            raise NotVllmError(f"/v1/models has no list of models: {str(error)[:_MAX_REASON_CHARS]}") from None
        # vLLM says of every model that it was created just now.
        return {name: msgspec.structs.replace(facts, created=0) for name, facts in models.items()}

    async def load(self) -> ServerLoad:
        """How busy it is."""
        page = await self._ask("/metrics", MAX_PAGE_BYTES, begins=True)
        is_cut = len(page) > MAX_PAGE_BYTES
        try:
            return read_load(page[:MAX_PAGE_BYTES], is_cut=is_cut)
        except ValueError:
            where = f" in its first {MAX_PAGE_BYTES} bytes" if is_cut else ""
            raise NotVllmError(f"/metrics has not vLLM's numbers{where}") from None

    async def _ask(self, path: str, max_bytes: int = _MAX_ANSWER_BYTES, *, begins: bool = False) -> bytes:
        """The answer. ``begins``: of one with more than ``max_bytes`` the beginning, which has more than that, too."""
        try:
            answer = await self._upstream.request("GET", self._worker.url, path, (), b"", ASK_TIMEOUT_S)
            try:
                body = await answer.read(max_bytes, ASK_TIMEOUT_S, begins=begins)
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

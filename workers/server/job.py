"""From a request body to everything needed to run and answer it: validation, tokens, sampling, the leg it is."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.errors import BadRequestError, NotFoundError
from protocol.handoff import KVTransferParams
from protocol.openai import ChatRequest, R, Request, validate
from workers.engine.api import EngineRequest
from workers.server import transfer_params
from workers.server.conversation import check_num_messages
from workers.server.detokenizer import Detokenizer
from workers.server.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from workers.server.replies import ChatReply, CompletionReply, Reply
from workers.server.sampling import check_prompt_tokens, sampling_params
from workers.server.text_stream import TextStream
from workers.server.tokenizer import TooManyTokensError
from workers.server.transcript import Transcript
from workers.server.transfer_params import PrefillAsk

if TYPE_CHECKING:
    from workers.server.identity import Identity
    from workers.server.tokenizer import Tokenizer


#: What ``/v1/completions`` gives a client that names no limit (OpenAI's default); a chat goes on while there is room.
COMPLETION_MAX_TOKENS = 16


@dataclass
class Job:
    """One request, ready to run. ``remote`` is set on the decode leg, ``hand_off`` on the prefill leg."""

    request: Request
    engine_request: EngineRequest
    transcript: Transcript
    reply: Reply
    created: int
    first_text: str = ""

    @property
    def hand_off(self) -> bool:
        """This is P's leg."""
        return self.engine_request.hand_off

    @property
    def continues(self) -> bool:
        """This is D's leg, and P's first token is already with the client."""
        remote = self.engine_request.remote
        return remote is not None and remote.first_token >= 0


class Jobs:
    """Makes jobs. Raises ApiError for what the client must change."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._tokenizer = tokenizer

    async def make(self, kind: type[R], body: dict[str, Any], request_id: str) -> Job:
        """The body comes from the router, or from this machine: so it may carry ``kv_transfer_params``."""
        leg = _leg(body)
        hand_off = isinstance(leg, PrefillAsk)
        check_num_messages(body)
        request = validate(kind, _without_limits(body) if hand_off else body)
        if request.model != self._identity.model:
            raise NotFoundError(f"The model '{request.model}' does not exist.", param="model", code="model_not_found")
        if hand_off and request.stream:
            raise BadRequestError("A prefill is not streamed.", param="stream", code="invalid_value")
        remote = leg if isinstance(leg, KVTransferParams) else None
        prompt = await self._prompt(request, remote)
        return self._job(request, prompt, remote, request_id, hand_off=hand_off)

    async def _prompt(self, request: Request, remote: KVTransferParams | None) -> list[int]:
        """The prompt's tokens: P's own where there are any, so that two workers can never differ."""
        if remote is not None and remote.prompt_token_ids:
            tokens = remote.prompt_token_ids
        else:
            tokens = await self._tokens(request)
        check_prompt_tokens(tokens, self._identity.vocab_size)
        if not tokens:
            raise BadRequestError("The prompt is empty.", param=_prompt_param(request), code="invalid_value")
        if len(tokens) > self._max_prompt_tokens:
            raise self._too_long(request, str(len(tokens)))
        return tokens

    async def _tokens(self, request: Request) -> list[int]:
        try:
            if isinstance(request, ChatRequest):
                return await self._tokenizer.encode_chat(request.messages, self._max_prompt_tokens)
            if isinstance(request.prompt, str):
                return await self._tokenizer.encode_text(request.prompt, self._max_prompt_tokens)
            return list(request.prompt)
        except TooManyTokensError as error:
            raise self._too_long(request, error.how_many) from None

    @property
    def _max_prompt_tokens(self) -> int:
        return self._identity.max_model_len - 1

    def _too_long(self, request: Request, how_many: str) -> BadRequestError:
        return BadRequestError(
            f"This model's maximum context length is {self._identity.max_model_len} tokens, at least one of them "
            f"for the answer, but the prompt has {how_many} tokens.",
            param=_prompt_param(request),
            code="context_length_exceeded",
        )

    def _job(
        self, request: Request, prompt: list[int], remote: KVTransferParams | None, request_id: str, *, hand_off: bool
    ) -> Job:
        eos = self._tokenizer.eos_token_ids
        sampling = sampling_params(
            request, seed=_seed(request, remote), vocab_size=self._identity.vocab_size, eos_token_ids=eos
        )
        max_tokens = 1 if hand_off else self._max_tokens(request, len(prompt))
        if remote is not None and remote.first_token >= 0 and max_tokens < 2:
            raise BadRequestError("P's first token leaves nothing to decode.", param="max_tokens", code="invalid_value")
        engine_request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_token_ids=frozenset() if request.ignore_eos else eos,
            priority=request.priority,
            hand_off=hand_off,
            remote=remote,
        )
        created = remote.created if remote is not None and remote.created else int(time.time())
        job = Job(
            request,
            engine_request,
            self._transcript(request, prompt),
            self._reply(request, request_id, created),
            created,
        )
        if remote is not None and remote.first_token >= 0:
            job.first_text = _resume(job, remote)
        return job

    def _max_tokens(self, request: Request, num_prompt_tokens: int) -> int:
        """What the client wants at most, and never more than fits: the answer then ends with ``length``."""
        room = self._identity.max_model_len - num_prompt_tokens
        wanted = request.max_new_tokens
        if wanted is None:
            wanted = room if isinstance(request, ChatRequest) else COMPLETION_MAX_TOKENS
        return min(wanted, room)

    def _transcript(self, request: Request, prompt: list[int]) -> Transcript:
        detokenizer = Detokenizer(self._tokenizer.decode, self._tokenizer.is_visible, prompt)
        text = TextStream(detokenizer, request.stop_strings, request.min_tokens or 0)
        return Transcript(text, self._logprobs(request), len(prompt))

    def _logprobs(self, request: Request) -> Logprobs | None:
        if request.num_logprobs is None:
            return None
        kind = ChatLogprobs if isinstance(request, ChatRequest) else CompletionLogprobs
        return kind(self._tokenizer.token_bytes)

    def _reply(self, request: Request, request_id: str, created: int) -> Reply:
        kind = ChatReply if isinstance(request, ChatRequest) else CompletionReply
        fingerprint = self._identity.fingerprint
        return kind(request_id, request.model, created, fingerprint, show_usage=request.include_usage)


def _prompt_param(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _leg(body: dict[str, Any]) -> PrefillAsk | KVTransferParams | None:
    raw = body.get(transfer_params.PARAM)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise BadRequestError(
            f"Invalid type for '{transfer_params.PARAM}': expected an object.",
            param=transfer_params.PARAM,
            code="invalid_type",
        )
    return transfer_params.parse(raw)


def _without_limits(body: dict[str, Any]) -> dict[str, Any]:
    """P samples exactly one token whatever the limits say; ``min_tokens`` may well be more than one."""
    return {name: value for name, value in body.items() if name not in {"max_tokens", "max_completion_tokens"}}


def _seed(request: Request, remote: KVTransferParams | None) -> int:
    if request.seed is not None:
        return request.seed
    if remote is not None and remote.seed is not None:
        return remote.seed
    return secrets.randbits(63)


def _resume(job: Job, remote: KVTransferParams) -> str:
    """Feed the transcript P's first token. A stream shows nothing of it, logprobs included: the client has them."""
    first_logprobs = None if job.request.stream else remote.first_logprobs
    return job.transcript.resume(remote.first_token, first_logprobs, remote.num_cached_tokens)

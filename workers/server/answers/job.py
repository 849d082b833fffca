"""From a request body to a job: validates it, tokenizes the prompt, and prepares sampling and the answer."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.protocol.errors import BadRequestError, no_such_model
from core.protocol.openai.requests import COMPLETION_MAX_TOKENS, ChatRequest, R, Request, validate
from core.protocol.router import is_request_id
from workers.engine.api import EngineRequest
from workers.server.answers.request_leg import leg_of
from workers.server.answers.sampling import check_prompt_tokens, sampling_params
from workers.server.answers.token_ids import TokenIdLines
from workers.text.detokenizer import Detokenizer
from workers.text.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from workers.text.response_builder import ChatResponseBuilder, CompletionResponseBuilder, ResponseBuilder
from workers.text.text_stream import TextStream
from workers.text.tokenizer import TooManyTokensError
from workers.text.transcript import Transcript

if TYPE_CHECKING:
    from core.protocol.handoff import KVTransferParams
    from workers.server.answers.request_leg import RequestLeg
    from workers.server.identity import Identity
    from workers.text.tokenizer import Tokenizer


#: Tokens of a migrated answer that are decoded before other tasks of the event loop may run (about 1 ms).
SKIP_TOKENS = 64


@dataclass
class Job:
    """One request, ready to run. ``token_ids``: the lines with token ids, if the router asked for them."""

    request: Request
    leg: RequestLeg
    engine_request: EngineRequest
    transcript: Transcript
    response: ResponseBuilder
    created: int
    first_text: str = ""
    token_ids: TokenIdLines | None = None


class JobFactory:
    """Makes jobs from request bodies."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._tokenizer = tokenizer

    async def make(self, kind: type[R], body: dict[str, Any], request_id: str, *, tells_token_ids: bool = False) -> Job:
        """The job for a body. Raises ApiError.

        The body may have ``kv_transfer_params``, because it comes from the router, or from this machine.
        """
        leg = leg_of(body)
        request = validate(kind, body)
        if request.model != self._identity.model:
            raise no_such_model(request.model)
        if leg.hand_off and request.stream:
            raise BadRequestError("A prefill is not streamed.", param="stream", code="invalid_value")
        prompt = await self._prompt(request, leg.remote)
        job = self._job(request, prompt, leg, request_id)
        await _skip_given(job, leg)
        if tells_token_ids and request.stream:
            job.token_ids = TokenIdLines(job.transcript.tokens)
        return job

    async def _prompt(self, request: Request, remote: KVTransferParams | None) -> list[int]:
        """The prompt's tokens. D takes P's tokens from the hand-off if it has them, so that P and D cannot differ."""
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

    def _job(self, request: Request, prompt: list[int], leg: RequestLeg, request_id: str) -> Job:
        eos = self._tokenizer.eos_token_ids
        sampling = sampling_params(
            request, seed=_seed(request, leg.remote), vocab_size=self._identity.vocab_size, eos_token_ids=eos
        )
        if not leg.has_begun:
            self._check_limit(request, len(prompt))
        # P samples exactly one token, whatever the client's limit is.
        max_tokens = len(leg.given) + 1 if leg.hand_off else self._max_tokens(request, len(prompt))
        engine_request = EngineRequest(
            request_id=_engine_id(request_id),
            prompt_token_ids=prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_token_ids=frozenset() if request.ignore_eos else eos,
            priority=request.priority,
            hand_off=leg.hand_off,
            remote=leg.remote,
            output_token_ids=leg.given,
        )
        leg.check(engine_request, self._identity)
        created = leg.created
        transcript, response = self._transcript(request, prompt), self._response(request, request_id, created)
        return Job(request, leg, engine_request, transcript, response, created)

    def _check_limit(self, request: Request, num_prompt_tokens: int) -> None:
        """Raise BadRequestError, with vLLM's message, if the client's ``max_tokens`` does not fit the context."""
        fits, wanted = self._identity.max_model_len, request.max_new_tokens
        if wanted is not None and num_prompt_tokens + wanted > fits:
            raise BadRequestError(
                f"'{request.limit_param}' is too large: {wanted}. This model's maximum context length is {fits} tokens "
                f"and your request has {num_prompt_tokens} input tokens ({wanted} > {fits} - {num_prompt_tokens}).",
                param=request.limit_param,
                code="context_length_exceeded",
            )

    def _max_tokens(self, request: Request, num_prompt_tokens: int) -> int:
        """The client's ``max_tokens`` or the endpoint's default, at most what fits the context."""
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

    def _response(self, request: Request, request_id: str, created: int) -> ResponseBuilder:
        kind = ChatResponseBuilder if isinstance(request, ChatRequest) else CompletionResponseBuilder
        fingerprint = self._identity.fingerprint
        return kind(request_id, request.model, created, fingerprint, show_usage=request.include_usage)


def _prompt_param(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _engine_id(request_id: str) -> str:
    """The request's id in the engine, where a request replaces an older one with the same id.

    A router's ids are unique, and a router repeats a request with the same id. The ids of two clients may be equal by
    chance, so a client's id is replaced by a new one.
    """
    return request_id if is_request_id(request_id) else secrets.token_hex(16)


def _seed(request: Request, remote: KVTransferParams | None) -> int:
    if request.seed is not None:
        return request.seed
    if remote is not None and remote.seed is not None:
        return remote.seed
    return secrets.randbits(63)


async def _skip_given(job: Job, leg: RequestLeg) -> None:
    """Add to the transcript the tokens that the client has already. Raises BadRequestError if they contain a stop
    string, because that answer is complete. P's first token and its logprobs are not streamed again either.
    """
    for start in range(0, len(leg.given), SKIP_TOKENS):
        job.transcript.skip(leg.given[start : start + SKIP_TOKENS])
        await asyncio.sleep(0)
    if job.transcript.stopped:
        raise leg.has_stop_string()
    if leg.remote is not None and leg.has_first_token:
        first_logprobs = None if job.request.stream else leg.remote.first_logprobs
        num_cached = leg.remote.num_cached_tokens
        job.first_text = job.transcript.resume(leg.remote.first_token, first_logprobs, num_cached)

"""From a request body to a job: validates it, tokenizes the prompt, and prepares sampling and the answer."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from baton_serve.core.protocol.choice import Choice
from baton_serve.core.protocol.errors import BadRequestError, no_such_model
from baton_serve.core.protocol.openai.requests import (
    COMPLETION_MAX_TOKENS,
    ChatRequest,
    CompletionRequest,
    R,
    Request,
    validate,
)
from baton_serve.core.protocol.openai.structured import Form, bounded
from baton_serve.core.protocol.request_ids import is_request_id
from baton_serve.workers.engine.api import EngineRequest
from baton_serve.workers.grammar.schemas import Room, TooLongError, in_known_words
from baton_serve.workers.parsers.forced_calls import forced_parser, grammar_of_calls
from baton_serve.workers.parsers.message_parser import MessageDelta
from baton_serve.workers.server.answers import transfer_params
from baton_serve.workers.server.answers.prompts import Prompts, echoed_texts
from baton_serve.workers.server.answers.request_leg import leg_of
from baton_serve.workers.server.answers.sampling import check_tokens, sampling_params
from baton_serve.workers.server.answers.token_ids import ASKED, HEADER, TokenIdLines
from baton_serve.workers.server.answers.turns import in_turns
from baton_serve.workers.text.detokenizer import Detokenizer
from baton_serve.workers.text.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from baton_serve.workers.text.message_reader import MessageReader
from baton_serve.workers.text.response_builder import (
    ChatResponseBuilder,
    CompletionResponseBuilder,
    ResponseBuilder,
    Shown,
    Usage,
)
from baton_serve.workers.text.shown_prompt import PromptLogprobs, ShownPrompt
from baton_serve.workers.text.text_stream import TextStream
from baton_serve.workers.text.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton_serve.core.protocol.handoff import KVTransferParams
    from baton_serve.workers.grammar.rank_grammars import HeldGrammar
    from baton_serve.workers.server.answers.request_leg import RequestLeg
    from baton_serve.workers.server.calls import Asked
    from baton_serve.workers.server.identity import Identity
    from baton_serve.workers.text.tokenizer import Tokenizer

    #: ``GrammarCompiler.hold``.
    HoldGrammar = Callable[[Form, str], Awaitable[HeldGrammar]]


@dataclass
class Job:
    """One request, ready to run.

    ``token_ids``: the lines with token ids, if the router asked for them. ``reader``: reads the text of a chat into
    parts of the message, if there is more than content. ``shown_prompt``: what the answer shows of its prompt, if
    anything. ``form`` and ``grammar``: what the answer must look like. Its maker releases the job.
    """

    request: Request
    leg: RequestLeg
    engine_request: EngineRequest
    transcript: Transcript
    response: ResponseBuilder
    created: int
    first_text: str = ""
    token_ids: TokenIdLines | None = None
    reader: MessageReader | None = None
    shown_prompt: ShownPrompt | None = None
    form: Form | None = None
    grammar: HeldGrammar | None = None

    def release(self) -> None:
        """Let the ranks forget the grammar: the request has ended. Idempotent."""
        if self.grammar is not None:
            self.grammar.release()

    @property
    def finish_reason(self) -> str:
        """OpenAI's, for an answer that has ended."""
        reason = self.transcript.finish_reason or ""
        return reason if self.reader is None else self.reader.finish_reason(reason)

    def read(self, text: str, *, ended: bool) -> MessageDelta:
        """What the text of the last token adds to the parts of the message; nothing if all of it is content.

        ``ended``: it is the last text.
        """
        if self.reader is None:
            return MessageDelta()
        return self.reader.read(text, len(self.transcript.tokens), ended=ended)

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        usage = self.transcript.usage
        if self.reader is None:
            return usage
        return replace(usage, num_reasoning_tokens=self.reader.num_reasoning_tokens)


#: Tokens at the end of a prompt in which the chat template may have begun the answer.
PROMPT_END_TOKENS = 64
#: Where an answer that is continued begins is looked for in this many times as many tokens, and again.
PROMPT_END_GROWTH = 8


class JobFactory:
    """Makes jobs from request bodies."""

    def __init__(
        self,
        identity: Identity,
        tokenizer: Tokenizer,
        prompts: Prompts,
        hold_grammar: HoldGrammar,
    ) -> None:
        """``hold_grammar`` has a form that answers must have compiled."""
        self._hold_grammar = hold_grammar
        self._identity = identity
        self._tokenizer = tokenizer
        self._prompts = prompts

    async def make(self, kind: type[R], body: dict[str, Any], asked: Asked) -> Job:
        """The job for a body, to be released. Raises ApiError.

        The body may have ``kv_transfer_params``, because it comes from the router, or from this machine.
        """
        leg = leg_of(body)
        request = validate(kind, body)
        if not self._identity.serves(request.model):
            raise no_such_model(request.model)
        if leg.hand_off and request.stream:
            raise BadRequestError("A prefill is not streamed.", param="stream", code="invalid_value")
        if request.is_about_prompt and (leg.hand_off or leg.remote is not None):
            raise transfer_params.bad("a request with echo or prompt_logprobs is answered by one worker alone")
        prompt = await self._prompt(request, leg.remote)
        form = _form(request)
        texts = await echoed_texts(self._tokenizer, request, prompt)
        grammar = None if form is None else await self._hold_grammar(form, asked.client)
        try:
            text = "" if grammar is None else grammar.text
            job = self._job(request, prompt, leg, asked, text, texts)
            job.form, job.grammar = form, grammar
            if isinstance(request, ChatRequest):
                job.reader = await self._reader(request, prompt, asked.request_id)
            await _skip_given(job, leg)
        except BaseException:
            if grammar is not None:
                grammar.release()
            raise
        if asked.headers.get(HEADER) == ASKED and request.stream:
            job.token_ids = TokenIdLines(job.transcript.tokens)
        return job

    async def _prompt(self, request: Request, remote: KVTransferParams | None) -> list[int]:
        """The prompt's tokens. D takes P's tokens from the hand-off if it has them, so that P and D cannot differ."""
        if remote is not None and remote.prompt_token_ids:
            tokens = remote.prompt_token_ids
        else:
            tokens = await self._prompts.tokens(request)
        check_tokens(tokens, self._identity.vocab_size, "Token ids of a prompt", "prompt")
        self._prompts.check(request, tokens)
        return tokens

    def _job(
        self, request: Request, prompt: list[int], leg: RequestLeg, asked: Asked, grammar: str, texts: list[str]
    ) -> Job:
        choice = asked.choice or Choice(asked.request_id)
        eos = self._tokenizer.eos_token_ids
        seed, scores_prompt = _seed(request, leg.remote), not leg.has_begun
        sampling = sampling_params(request, self._identity, self._tokenizer, seed=seed, scores_prompt=scores_prompt)
        if not leg.has_begun:
            self._check_limit(request, len(prompt))
        # P samples exactly one token, whatever the client's limit is.
        max_tokens = len(leg.given) + 1 if leg.hand_off else self._max_tokens(request, len(prompt))
        is_last = leg.hand_off and len(leg.given) + 1 == self._default_limit(request)
        engine_request = EngineRequest(
            request_id=_engine_id(asked.request_id),
            prompt_token_ids=prompt,
            sampling=sampling,
            max_tokens=max_tokens,
            stop_token_ids=(frozenset() if request.ignore_eos else eos).union(request.stop_token_ids or ()),
            priority=request.priority,
            hand_off=leg.hand_off and not is_last,
            num_readers=leg.num_readers,
            remote=leg.remote,
            output_token_ids=leg.given,
            cache_salt=request.cache_salt or "",
            grammar=grammar,
            adapter=self._identity.adapter_of(request.model),
        )
        leg.check(engine_request, self._identity)
        created = leg.created or choice.created or int(time.time())
        logprobs = self._logprobs(request, sum(map(len, texts)))
        transcript = self._transcript(request, prompt, logprobs)
        shows_prompt = request.return_token_ids and not (request.stream and leg.has_begun)
        shown = Shown(request.include_usage, request.usage_in_chunks, prompt if shows_prompt else None)
        response = self._response(request, choice, created, shown)
        job = Job(request, leg, engine_request, transcript, response, created)
        if request.is_about_prompt and not leg.has_begun:
            wanted = request.prompt_logprobs
            job.shown_prompt = ShownPrompt(
                prompt,
                texts,
                logprobs if texts and isinstance(logprobs, CompletionLogprobs) else None,
                None if wanted is None else PromptLogprobs(self._tokenizer.token_bytes, wanted),
                num_top=request.num_logprobs or 0,
                in_parts=request.stream,
            )
            job.first_text = job.shown_prompt.text
        return job

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
            wanted = COMPLETION_MAX_TOKENS if isinstance(request, CompletionRequest) else self._default_limit(request)
        return room if wanted is None else min(wanted, room)

    def _default_limit(self, request: Request) -> int | None:
        """The model's own limit of a chat whose client names none. Routers do not know it, so that P has to see itself
        whether a token is the last one.
        """
        is_open = isinstance(request, ChatRequest) and request.max_new_tokens is None
        return self._identity.defaults.max_tokens if is_open else None

    def _transcript(self, request: Request, prompt: list[int], logprobs: Logprobs | None) -> Transcript:
        text = TextStream(
            self._detokenizer(request, prompt),
            request.stop_strings,
            request.min_tokens or 0,
            shows_stop=request.include_stop_str_in_output,
        )
        own = frozenset() if request.ignore_eos else self._tokenizer.eos_token_ids
        stop_tokens = frozenset(request.stop_token_ids or ()) - own
        return Transcript(text, logprobs, len(prompt), stop_tokens)

    def _detokenizer(self, request: Request, prompt: list[int]) -> Detokenizer:
        tokenizer = self._tokenizer
        if request.skip_special_tokens:
            if isinstance(request, ChatRequest) and tokenizer.marks:
                return Detokenizer(tokenizer.decode_all, tokenizer.is_text_or_mark, prompt)
            return Detokenizer(tokenizer.decode, tokenizer.is_visible, prompt)
        unspaced = None if request.spaces_between_special_tokens else tokenizer.added_texts
        return Detokenizer(tokenizer.decode_all, tokenizer.is_token, prompt, unspaced)

    async def _reader(self, request: ChatRequest, prompt: list[int], request_id: str) -> MessageReader | None:
        """What reads the answer's text, None if all of it is content. Raises BadRequestError for tools of which no call
        would be understood.
        """
        if (forced := request.forced_tools) is not None:
            return MessageReader(forced_parser(forced), request_id, calls_end=request.tool_choice == "required")
        form, tools = self._tokenizer.message_format, request.tool_objects
        if request.tool_choice == "none":
            tools = None
        if tools is not None and not form.understands_calls:
            raise BadRequestError(
                "Calls of this model are not understood here: its chat template is of no known family. "
                "The worker's setting tool_call_parser can name one.",
                param="tools",
                code="unsupported_parameter",
            )
        if not form.reads_parts(calls=tools is not None):
            return None
        parser = form.parser(await self._prompt_end(request, prompt), tools)
        if parser is None:
            return None
        return MessageReader(parser, request_id, one_call=not request.parallel_tool_calls)

    async def _prompt_end(self, request: ChatRequest, prompt: list[int]) -> str:
        """The end of the prompt, with the beginning of the answer if the prompt has it.

        A template begins an answer in a few words. A client that has one continued may have written most of it.
        """
        num = PROMPT_END_TOKENS
        text = self._tokenizer.decode_all(prompt[-num:])
        while request.continue_final_message and num < len(prompt):
            if self._tokenizer.message_format.has_begun_in(text):
                break
            num *= PROMPT_END_GROWTH
            text = await self._tokenizer.decode_whole(prompt[-num:])
        return text

    def _logprobs(self, request: Request, prompt_chars: int) -> Logprobs | None:
        if request.num_logprobs is None:
            return None
        names, as_ids = self._tokenizer.token_bytes, request.return_tokens_as_token_ids
        if isinstance(request, ChatRequest):
            return ChatLogprobs(names, as_ids=as_ids)
        return CompletionLogprobs(names, as_ids=as_ids, prompt_chars=prompt_chars)

    def _response(self, request: Request, choice: Choice, created: int, shown: Shown) -> ResponseBuilder:
        kind = ChatResponseBuilder if isinstance(request, ChatRequest) else CompletionResponseBuilder
        fingerprint = self._identity.system_fingerprint(request.model)
        return kind(choice.answer_id, request.model, created, fingerprint, shown, choice.index)


def _form(request: Request) -> Form | None:
    """The form of the answer: the one that the request asks for, or the calls that it forces."""
    forced = request.forced_tools if isinstance(request, ChatRequest) else None
    if forced is None:
        return request.form
    one, room = _has_one_call(request), Room()
    try:
        # Bounds what is to be rewritten. What the room allows to be added then is no more than twice as long.
        bounded(_form_of_calls(forced, one=one), has_schemas_only=True)
        return _form_of_calls([_in_known_words(tool, room) for tool in forced], one=one)
    except TooLongError as error:
        raise BadRequestError(f"'tools' cannot be followed: {error}.", param="tools", code="invalid_value") from error
    except (orjson.JSONEncodeError, RecursionError):
        raise BadRequestError(
            "A schema of 'tools' is nested too deeply.", param="tools", code="invalid_value"
        ) from None


def _form_of_calls(tools: list[dict[str, Any]], *, one: bool) -> Form:
    return Form("grammar", grammar_of_calls(tools, one=one), "tools")


def _in_known_words(tool: dict[str, Any], room: Room) -> dict[str, Any]:
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": in_known_words(function.get("parameters") or {}, room)}}


def _has_one_call(request: Request) -> bool:
    return isinstance(request, ChatRequest) and (request.tool_choice != "required" or not request.parallel_tool_calls)


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
    async for token in in_turns(leg.given):
        job.read(job.transcript.skip(token), ended=False)
    if job.transcript.text.stop_string is not None:
        raise leg.has_stop_string()
    if leg.remote is not None and leg.has_first_token:
        first_logprobs = None if job.request.stream else leg.remote.first_logprobs
        num_cached = leg.remote.num_cached_tokens
        job.first_text = job.transcript.resume(leg.remote.first_token, first_logprobs, num_cached)
        if job.request.stream:
            job.read(job.first_text, ended=False)

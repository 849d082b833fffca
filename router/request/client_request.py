"""What a client asked for: the part of a validated body that the router acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core.protocol.openai.choices import Choices
from core.protocol.openai.requests import COMPLETION_MAX_TOKENS
from router.request.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from core.protocol.openai.plain import MoreChat, MoreCompletion, Plain
    from core.protocol.openai.requests import ChatRequest, CompletionRequest

    Validated = ChatRequest | CompletionRequest | Plain


CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


class ClientRequest(msgspec.Struct, frozen=True):
    """What the router acts on; all other fields of a body are passed on unread."""

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    #: Most new tokens. None: as many as fit.
    max_new_tokens: int | None
    priority: int
    user: str
    #: Path at which workers serve the request.
    path: str = CHAT_PATH
    #: Whether one worker can prefill it and another decode it. False: one worker does everything.
    splits: bool = True
    #: Whether its stream ends with ``data: [DONE]``. False: with the end of the HTTP answer.
    ends_with_done: bool = True
    #: Whether only its worker judges its body: the worker's answers, also errors, are then passed on as they are.
    passed_on: bool = False
    #: Whether every chunk of its stream has the usage so far.
    usage_in_chunks: bool = False
    #: Whether its stream has the ids of prompt and tokens.
    token_ids: bool = False
    #: What it asks for more than one answer of; None: it asks for one.
    choices: Choices | None = None
    #: Whether it asks for the logprobs of a completion.
    logprobs: bool = False
    #: Whether its answer is about its prompt (an echo, logprobs of the prompt): a worker that prefills does it all.
    is_about_prompt: bool = False
    #: Path at which the client asked; empty: ``path``. Another one: request and answer are translated (``dialects``).
    asked_at: str = ""

    @property
    def endpoint(self) -> str:
        """Path at which the client asked."""
        return self.asked_at or self.path

    @property
    def prompt_param(self) -> str:
        """The body's field with the prompt, for error messages."""
        endpoint = ENDPOINTS.get(self.endpoint)
        return endpoint.prompt_param if endpoint is not None else "messages" if self.chat else "prompt"

    @property
    def chunk_object(self) -> str:
        """The field ``object`` in the events of a stream."""
        return "chat.completion.chunk" if self.chat else "text_completion"

    @classmethod
    def of(cls, request: Validated, *, chat: bool) -> ClientRequest:
        """Make one from a validated body."""
        wanted = request.max_new_tokens
        return cls(
            chat=chat,
            model=request.model,
            stream=request.stream,
            include_usage=request.include_usage,
            max_new_tokens=COMPLETION_MAX_TOKENS if wanted is None and not chat else wanted,
            priority=request.priority,
            user=request.user or request.safety_identifier or "",
            path=CHAT_PATH if chat else COMPLETIONS_PATH,
        )

    def showing(self, request: ChatRequest | CompletionRequest | MoreChat | MoreCompletion) -> ClientRequest:
        """The same with what a stream of ``request`` shows beside its text."""
        if not (request.usage_in_chunks or request.return_token_ids):
            return self
        return msgspec.structs.replace(
            self, usage_in_chunks=request.usage_in_chunks, token_ids=request.return_token_ids
        )

    def about_prompt(self) -> ClientRequest:
        """The same for an answer that is about its prompt."""
        return msgspec.structs.replace(self, splits=False, is_about_prompt=True)

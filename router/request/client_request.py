"""What a client asked for: the part of a validated body that the router acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from baton_serve.core.protocol.openai.requests import COMPLETION_MAX_TOKENS
from baton_serve.router.request.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.choices import Choices
    from baton_serve.core.protocol.openai.plain import Plain
    from baton_serve.core.protocol.openai.requests import ChatRequest, CompletionRequest

    Validated = ChatRequest | CompletionRequest | Plain


CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"


class ClientRequest:
    """What the router acts on; all other fields of a body are passed on unread.

    It is changed only while it is made: by what validates or translates a body, and by the header with the priority.
    """

    __slots__ = (
        "asked_at",
        "chat",
        "choices",
        "client",
        "ends_with_done",
        "include_usage",
        "is_about_prompt",
        "logprobs",
        "max_new_tokens",
        "model",
        "passed_on",
        "path",
        "priority",
        "splits",
        "stream",
        "token_ids",
        "usage_in_chunks",
        "user",
    )

    def __init__(
        self,
        *,
        chat: bool,
        model: str,
        stream: bool,
        include_usage: bool,
        max_new_tokens: int | None,
        priority: int,
        user: str,
        path: str = CHAT_PATH,
        passed_on: bool = False,
    ) -> None:
        self.chat = chat
        self.model = model
        self.stream = stream
        self.include_usage = include_usage
        #: Most new tokens. None: as many as fit.
        self.max_new_tokens = max_new_tokens
        self.priority = priority
        self.user = user
        #: The client's key for workers, if its answer may have a form; else empty.
        self.client = ""
        #: Path at which workers serve the request.
        self.path = path
        #: Whether only its worker judges its body: the worker's answers, also errors, are then passed on as they are.
        self.passed_on = passed_on
        #: Path at which the client asked; empty: ``path``. Another one: request and answer are translated
        #: (``dialects``).
        self.asked_at = ""
        #: Whether one worker can prefill it and another decode it. False: one worker does everything.
        self.splits = True
        #: Whether its stream ends with ``data: [DONE]``. False: with the end of the HTTP answer.
        self.ends_with_done = True
        #: Whether every chunk of its stream has the usage so far.
        self.usage_in_chunks = False
        #: Whether its stream has the ids of prompt and tokens.
        self.token_ids = False
        #: What it asks for more than one answer of; None: it asks for one.
        self.choices: Choices | None = None
        #: Whether it asks for the logprobs of a completion.
        self.logprobs = False
        #: Whether its answer is about its prompt (an echo, logprobs of the prompt): a worker that prefills does it all.
        self.is_about_prompt = False

    def __repr__(self) -> str:
        return f"<ClientRequest at {self.endpoint} for {self.model}>"

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

    @staticmethod
    def of(request: Validated, *, chat: bool) -> ClientRequest:
        """Make one from a validated body."""
        wanted = request.max_new_tokens
        return ClientRequest(
            chat=chat,
            model=request.model,
            stream=request.stream,
            include_usage=request.include_usage,
            max_new_tokens=COMPLETION_MAX_TOKENS if wanted is None and not chat else wanted,
            priority=request.priority,
            user=request.user or request.safety_identifier or "",
            path=CHAT_PATH if chat else COMPLETIONS_PATH,
        )

    def show(self, request: Validated) -> None:
        """Note what a stream of ``request`` shows beside its text."""
        self.usage_in_chunks = request.usage_in_chunks
        self.token_ids = request.return_token_ids

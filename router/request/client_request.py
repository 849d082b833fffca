"""What a client asked for: the part of a validated body that the router acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from baton_serve.core.protocol.openai.passed_on import PassedOn
from baton_serve.core.protocol.openai.requests import COMPLETION_MAX_TOKENS, ChatRequest, CompletionRequest
from baton_serve.router.request.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.choices import Choices
    from baton_serve.core.protocol.openai.plain import Plain

    Validated = ChatRequest | CompletionRequest | Plain


CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"


class ClientRequest:
    """What the router acts on; all other fields of a body are passed on unread.

    It is changed only while it is made: by what validates or translates a body, and by the header with the priority.
    """

    def __init__(self, fields: Validated | PassedOn, path: str) -> None:
        """``fields``: of a validated body."""
        #: Path at which workers serve the request.
        self.path = path
        self.chat = path == CHAT_PATH
        self.model = fields.model or ""
        self.stream = fields.stream
        self.include_usage = fields.include_usage
        limit = fields.max_new_tokens
        #: Most new tokens. None: as many as fit.
        self.max_new_tokens = COMPLETION_MAX_TOKENS if limit is None and path == COMPLETIONS_PATH else limit
        self.priority = fields.priority
        self.user = fields.user or fields.safety_identifier or ""
        #: Whether only its worker judges its body: the worker's answers, also errors, are then passed on as they are.
        self.passed_on = isinstance(fields, PassedOn)
        #: Whether every chunk of its stream has the usage so far.
        self.usage_in_chunks = not isinstance(fields, PassedOn) and fields.usage_in_chunks
        #: Whether its stream has the ids of prompt and tokens.
        self.token_ids = not isinstance(fields, PassedOn) and fields.return_token_ids
        #: The client's key for workers, if its answer may have a form; else empty.
        self.client = ""
        #: Path at which the client asked; empty: ``path``. Another one: request and answer are translated
        #: (``dialects``).
        self.asked_at = ""
        #: Whether one worker can prefill it and another decode it. False: one worker does everything.
        self.splits = True
        #: Whether its stream ends with ``data: [DONE]``. False: with the end of the HTTP answer.
        self.ends_with_done = True
        #: How many answers it asks for, and to which prompts; None: one answer.
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

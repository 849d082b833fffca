"""What answers look like, for the reference of all calls.

Nothing is checked against these: workers answer, and the router passes on more fields than stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, Field

from baton_serve.core.protocol.openai.tokenize import Detokenized, Tokens
from baton_serve.router.request.endpoints import COUNT_TOKENS, DETOKENIZE, MESSAGES, RESPONSES, TOKENIZE


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error, as OpenAI's clients read it."""

    error: ErrorObject
    request_id: str | None = Field(None, description="As in the header x-request-id; of completions only.")


class TokenCounts(BaseModel):
    """Tokens of chats and completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class FunctionCall(BaseModel):
    """Which function the model calls."""

    name: str
    arguments: str = Field(description="JSON, as the model wrote it.")


class ToolCall(BaseModel):
    """A call of one of the request's tools."""

    id: str
    type: str = Field(description="Always ``function``.")
    function: FunctionCall


class ChatMessage(BaseModel):
    """What the model says."""

    role: str
    content: str | None
    reasoning: str | None = Field(None, description="Of models that think; also as reasoning_content.")
    tool_calls: list[ToolCall] = []


class _Choice(BaseModel):
    index: int
    finish_reason: str | None = Field(description="stop, length or tool_calls.")
    logprobs: dict[str, Any] | None = None


class ChatChoice(_Choice):
    """One of n answers."""

    message: ChatMessage


class CompletionChoice(_Choice):
    """One of n answers."""

    text: str


class _Completion(BaseModel):
    id: str
    object: str
    created: int = Field(description="Unix seconds.")
    model: str
    usage: TokenCounts


class ChatCompletion(_Completion):
    """A whole answer. A stream has chunks of it, with ``delta`` in place of ``message``, and ends with ``[DONE]``."""

    choices: list[ChatChoice]


class Completion(_Completion):
    """A whole answer. A stream has chunks of it, and ends with ``[DONE]``."""

    choices: list[CompletionChoice]


class InputAndOutput(BaseModel):
    """Tokens of responses and messages."""

    input_tokens: int
    output_tokens: int


class ResponseAnswer(BaseModel):
    """A whole response. A stream has OpenAI's named events; the last one has the whole response."""

    id: str
    object: str
    created_at: int = Field(description="Unix seconds.")
    status: str = Field(description="completed, incomplete or failed.")
    model: str
    output: list[dict[str, Any]] = Field(description="Items: messages, reasoning, calls.")
    usage: InputAndOutput | None


class MessageAnswer(BaseModel):
    """A whole message. A stream has Anthropic's named events."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]] = Field(description="Blocks: text, thinking, calls.")
    stop_reason: str | None
    stop_sequence: str | None
    usage: InputAndOutput


class Counted(BaseModel):
    """How many tokens the messages are."""

    input_tokens: int


#: By the paths of endpoints that Baton's workers serve. What only vLLM serves, vLLM's own reference describes.
ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    RESPONSES.path: ResponseAnswer,
    MESSAGES.path: MessageAnswer,
    COUNT_TOKENS.path: Counted,
    TOKENIZE.path: Tokens,
    DETOKENIZE.path: Detokenized,
}

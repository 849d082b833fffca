"""What a client asked for: the part of a validated body that the router acts on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from protocol.openai import ChatRequest

if TYPE_CHECKING:
    from protocol.openai import CompletionRequest


class Ask(msgspec.Struct, frozen=True):
    """One request as the router sees it."""

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    max_new_tokens: int | None
    priority: int
    user: str

    @property
    def path(self) -> str:
        """Where workers serve it."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def prompt_param(self) -> str:
        """What the client calls its prompt."""
        return "messages" if self.chat else "prompt"

    @property
    def chunk_object(self) -> str:
        """``object`` of the events of a stream."""
        return "chat.completion.chunk" if self.chat else "text_completion"

    @classmethod
    def of(cls, request: ChatRequest | CompletionRequest) -> Ask:
        """From a validated body."""
        return cls(
            chat=isinstance(request, ChatRequest),
            model=request.model,
            stream=request.stream,
            include_usage=request.include_usage,
            max_new_tokens=request.max_new_tokens,
            priority=request.priority,
            user=request.user or request.safety_identifier or "",
        )

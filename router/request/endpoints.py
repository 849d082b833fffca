"""What a router serves besides chats and completions, most of it for models of which all workers are vLLM servers.

Each such request goes whole to one worker, and its answer comes back as the worker sends it, unless it is in a dialect
(``dialects``) and the model has workers of Baton's.
"""

from __future__ import annotations

from typing import NamedTuple

from baton_serve.core.protocol.openai.passed_on import PassedOn, PassedOnMessages, PassedOnResponse


class Endpoint(NamedTuple):
    """One path. ``streams``: it can answer with events; these have names, and no ``[DONE]`` follows them."""

    path: str
    about: str
    #: The body's field with the prompt, for error messages.
    prompt_param: str = "input"
    body: type[PassedOn] = PassedOn
    streams: bool = False
    #: Whether Baton's workers have it too.
    is_everywhere: bool = False
    #: Whether it is translated for Baton's workers (``dialects``), which do not have it.
    is_dialect: bool = False

    @property
    def tag(self) -> str:
        """Under which heading the reference of all calls has it."""
        if self.is_dialect:
            return "openai" if self is RESPONSES else "anthropic"
        return "tokens" if self.is_everywhere else "vllm"


RESPONSES = Endpoint(
    "/v1/responses",
    "OpenAI's responses, streamed or not. Nothing is stored.",
    "input",
    PassedOnResponse,
    streams=True,
    is_dialect=True,
)
MESSAGES = Endpoint(
    "/v1/messages",
    "Anthropic's messages, streamed or not.",
    "messages",
    PassedOnMessages,
    streams=True,
    is_dialect=True,
)
COUNT_TOKENS = Endpoint(
    "/v1/messages/count_tokens",
    "Counts the tokens of Anthropic's messages.",
    "messages",
    PassedOnMessages,
    is_dialect=True,
)
TOKENIZE = Endpoint("/tokenize", "The token ids of a prompt or a chat.", "prompt", is_everywhere=True)
DETOKENIZE = Endpoint("/detokenize", "The text of token ids.", "tokens", is_everywhere=True)

_ALL = (
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    Endpoint("/v1/embeddings", "OpenAI's embeddings."),
    Endpoint("/pooling", "vLLM's pooling: hidden states, embeddings or scores."),
    Endpoint("/classify", "vLLM's classification."),
    Endpoint("/score", "vLLM's similarity of pairs of texts."),
    Endpoint("/v1/score", "As /score."),
    Endpoint("/rerank", "Cohere's and Jina's reranking.", "documents"),
    Endpoint("/v1/rerank", "As /rerank.", "documents"),
    Endpoint("/v2/rerank", "As /rerank.", "documents"),
    TOKENIZE,
    DETOKENIZE,
    Endpoint("/v1/audio/transcriptions", "OpenAI's transcriptions; JSON only.", "file"),
    Endpoint("/v1/audio/translations", "OpenAI's translations; JSON only.", "file"),
)

ENDPOINTS = {endpoint.path: endpoint for endpoint in _ALL}

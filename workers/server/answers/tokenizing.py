"""``POST /tokenize`` and ``/detokenize``, as vLLM's servers answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from baton_serve.core.protocol.errors import BadRequestError, no_such_model
from baton_serve.core.protocol.openai.json_body import BodyLimits, parse_body
from baton_serve.core.protocol.openai.tokenize import (
    Detokenize,
    Detokenized,
    T,
    TokenizeChat,
    TokenizeText,
    Tokens,
    validate_tokenizing,
)
from baton_serve.workers.server.answers.prompts import Prompts
from baton_serve.workers.server.answers.sampling import check_tokens
from baton_serve.workers.server.calls import Asked
from baton_serve.workers.server.client import Client
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.text.tokenizer import Tokenizer, TooManyTokensError

if TYPE_CHECKING:
    from pydantic import BaseModel

#: The most tokens, in contexts of the model: a client may want to know by how much a text is too long. Millions of
#: tokens would keep a thread busy for many seconds.
MAX_CONTEXTS = 4


class Tokenizing:
    """What this worker's tokenizer makes of texts, conversations and tokens. Raises ApiError."""

    def __init__(self, identity: Identity, tokenizer: Tokenizer, prompts: Prompts, limits: BodyLimits) -> None:
        self._limits = limits
        self._identity = identity
        self._tokenizer = tokenizer
        self._prompts = prompts

    async def tokenize(self, raw: bytes, client: Client, _: Asked) -> None:
        """An ``Endpoint``."""
        await _send(client, await self._tokenized(parse_body(raw, self._limits)))

    async def detokenize(self, raw: bytes, client: Client, _: Asked) -> None:
        """An ``Endpoint``."""
        await _send(client, await self._detokenized(parse_body(raw, self._limits)))

    async def _tokenized(self, body: dict[str, Any]) -> Tokens:
        """The tokens of a text, or of a conversation in the model's chat template."""
        if "messages" in body and "prompt" in body:
            raise BadRequestError("Only one of 'messages' and 'prompt' may be given.", param="prompt")
        if "messages" in body:
            chat = self._validated(TokenizeChat, body)
            options, around = self._prompts.options(chat), chat.add_special_tokens
            encoded = self._tokenizer.encode_chat(chat.messages, self._most, options, add_special_tokens=around)
            return await self._tokens("messages", encoded, with_strings=chat.return_token_strs)
        text = self._validated(TokenizeText, body)
        encoded = self._tokenizer.encode_text(text.prompt, self._most, add_special_tokens=text.add_special_tokens)
        return await self._tokens("prompt", encoded, with_strings=text.return_token_strs)

    async def _detokenized(self, body: dict[str, Any]) -> Detokenized:
        """The text of tokens, special ones included."""
        request = self._validated(Detokenize, body)
        if len(request.tokens) > self._most:
            raise self._too_many("tokens", str(len(request.tokens)))
        check_tokens(request.tokens, self._identity.vocab_size, "Token ids", "tokens")
        return Detokenized(prompt=await self._tokenizer.decode_whole(request.tokens))

    @property
    def _most(self) -> int:
        return MAX_CONTEXTS * self._identity.max_model_len

    def _too_many(self, param: str, num: str) -> BadRequestError:
        return BadRequestError(
            f"{param!r} has {num} tokens; at most {self._most} are taken here, {MAX_CONTEXTS} contexts of the model.",
            param=param,
            code="too_many_tokens",
        )

    async def _tokens(self, param: str, encoded: Awaitable[list[int]], *, with_strings: bool) -> Tokens:
        try:
            tokens = await encoded
        except TooManyTokensError as error:
            raise self._too_many(param, error.how_many) from None
        strings = await asyncio.to_thread(lambda: list(map(self._tokenizer.piece, tokens))) if with_strings else None
        limit = self._identity.max_model_len
        return Tokens(count=len(tokens), max_model_len=limit, tokens=tokens, token_strs=strings)

    def _validated(self, kind: type[T], body: dict[str, Any]) -> T:
        request = validate_tokenizing(kind, body)
        if request.model is not None and not self._identity.serves(request.model):
            raise no_such_model(request.model)
        return request


async def _send(client: Client, answer: BaseModel) -> None:
    client.send_json(200, await asyncio.to_thread(lambda: answer.model_dump_json().encode()))

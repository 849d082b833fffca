"""The tokens of a request's prompt: from a chat, a text or tokens, cut to what the client wants of it; and the text of
each where the answer begins with them.
"""

from __future__ import annotations

import logging
from typing import Any

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import COMPLETION_MAX_TOKENS, ChatRequest, CompletionRequest, Request
from baton_serve.core.protocol.openai.templates import TemplateFields
from baton_serve.workers.server.answers.turns import in_turns
from baton_serve.workers.text.chat_template import ChatOptions
from baton_serve.workers.text.detokenizer import REPLACEMENT, Detokenizer
from baton_serve.workers.text.tokenizer import Tokenizer, TooManyTokensError

logger = logging.getLogger(__name__)

#: The variable by which chat templates let a model think, or not.
_SWITCH = "enable_thinking"


class Prompts:
    """Tokenizes prompts for a model with a context of ``max_model_len`` tokens.

    ``allow_chat_template``: clients may send templates of their own.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, *, allow_chat_template: bool = False) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._allow_chat_template = allow_chat_template
        #: The parameters without effect that the log has named.
        self._noted: set[str] = set()

    async def tokens(self, request: Request) -> list[int]:
        """The tokens. Raises BadRequestError; they still need a ``check``."""
        try:
            if isinstance(request, ChatRequest):
                return await self._of_chat(request)
            return await self._of_completion(request)
        except TooManyTokensError as error:
            raise self._too_long(request, error.how_many) from None

    def check(self, request: Request, tokens: list[int]) -> None:
        """Raise BadRequestError for too few or too many tokens."""
        if not tokens:
            raise BadRequestError("The prompt is empty.", param=_param(request), code="invalid_value")
        if len(tokens) >= self._max_model_len:
            raise self._too_long(request, str(len(tokens)))

    async def _of_chat(self, request: ChatRequest) -> list[int]:
        return await self._tokenizer.encode_chat(
            request.messages,
            self._max_model_len - 1,
            self.options(request),
            keep=self._keep(request),
            add_special_tokens=bool(request.add_special_tokens),
        )

    def options(self, request: TemplateFields) -> ChatOptions:
        """How the conversation is rendered. Raises BadRequestError for a template that is not allowed."""
        if request.chat_template is not None and not self._allow_chat_template:
            raise BadRequestError(
                "'chat_template' is refused, because the worker's setting allow_chat_template is off.",
                param="chat_template",
                code="unsupported_parameter",
            )
        return ChatOptions(
            request.add_generation_prompt,
            request.continue_final_message,
            request.chat_template,
            request.documents,
            request.tool_objects,
            {**self._effort(request), **self._thinking(request), **(request.chat_template_kwargs or {})},
        )

    def _effort(self, request: TemplateFields) -> dict[str, Any]:
        """The template's variables for ``reasoning_effort``; as with vLLM it has no effect on one without any."""
        effort = request.reasoning_effort
        if effort is None:
            return {}
        template = self._template(request)
        switches = {_SWITCH: False} if effort == "none" else {}
        found = {name: value for name, value in {"reasoning_effort": effort, **switches}.items() if name in template}
        if not found:
            self._note("reasoning_effort")
        return found

    def _thinking(self, request: TemplateFields) -> dict[str, Any]:
        """The template's variable for ``thinking``; it has no effect on one without."""
        if request.thinking is None:
            return {}
        thinks = request.thinking.type == "enabled"
        if _SWITCH in self._template(request):
            return {_SWITCH: thinks}
        if thinks != self._tokenizer.message_format.understands_reasoning:
            self._note("thinking")
        return {}

    def _note(self, param: str) -> None:
        """Say once that a parameter has no effect. Agents send it with every request, whatever the model."""
        if param not in self._noted:
            self._noted.add(param)
            logger.warning("%r of requests has no effect: the model's chat template has no variable for it", param)

    def _template(self, request: TemplateFields) -> str:
        return self._tokenizer.chat_template if request.chat_template is None else request.chat_template

    async def _of_completion(self, request: CompletionRequest) -> list[int]:
        keep, prompt = self._keep(request), request.prompt
        if request.suffix:
            prompt = self._with_suffix(prompt, request.suffix)
        if not isinstance(prompt, str):
            return prompt[-keep:] if keep is not None else list(prompt)
        around = request.add_special_tokens is not False
        return await self._tokenizer.encode_text(prompt, self._max_model_len - 1, keep=keep, add_special_tokens=around)

    def _with_suffix(self, prompt: str | list[int], suffix: str) -> str:
        if not isinstance(prompt, str):
            why = "needs a prompt that is a text"
        else:
            text = self._tokenizer.infilling_prompt(prompt, suffix)
            if text is not None:
                return text
            why = "is not supported by this model, whose vocabulary has no tokens for it"
        raise BadRequestError(f"'suffix' {why}.", param="suffix", code="unsupported_parameter")

    def _keep(self, request: Request) -> int | None:
        """How many tokens of the prompt are used; None: all."""
        asked = request.truncate_prompt_tokens
        if asked is None:
            return None
        if asked > self._max_model_len:
            raise BadRequestError(
                f"'truncate_prompt_tokens' is {asked}, more than this model's maximum context length of "
                f"{self._max_model_len} tokens.",
                param="truncate_prompt_tokens",
                code="invalid_value",
            )
        if asked > 0:
            return asked
        default = 1 if isinstance(request, ChatRequest) else COMPLETION_MAX_TOKENS
        wanted = default if request.max_new_tokens is None else max(1, request.max_new_tokens)
        return max(1, self._max_model_len - wanted)

    def _too_long(self, request: Request, how_many: str) -> BadRequestError:
        return BadRequestError(
            f"This model's maximum context length is {self._max_model_len} tokens, at least one of them "
            f"for the answer, but the prompt has {how_many} tokens.",
            param=_param(request),
            code="context_length_exceeded",
        )


def _param(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


async def echoed_texts(tokenizer: Tokenizer, request: Request, tokens: list[int]) -> list[str]:
    """The text of each token of a prompt with which the answer begins; joined, they are the text of the prompt. Empty:
    the answer does not begin with it.

    Special tokens have their text, as with vLLM, but for those that the tokenizer has put around the client's text.
    """
    if not isinstance(request, CompletionRequest) or not request.echo:
        return []
    has_more = isinstance(request.prompt, str) and request.add_special_tokens is not False
    before, after = tokenizer.num_around if has_more else (0, 0)
    if request.truncate_prompt_tokens is not None and len(tokens) <= before + after:  # these are the text's last ones
        before = after = 0
    shown = range(before, len(tokens) - after)
    detokenizer = Detokenizer(tokenizer.decode_all, tokenizer.is_token)
    texts = [""] * len(tokens)
    async for index in in_turns(shown):
        texts[index] = detokenizer.push(tokens[index])
    if shown:
        texts[shown[-1]] += _rest(detokenizer, is_all=request.max_tokens == 0)
    return texts


def _rest(detokenizer: Detokenizer, *, is_all: bool) -> str:
    """The text that the last tokens still hold back. A character that begins in a prompt belongs to the output, which
    begins with it, unless there is none.
    """
    rest = detokenizer.flush()
    return rest if is_all else rest.rstrip(REPLACEMENT)

"""The text of a prompt with which its answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.core.protocol.openai.requests import CompletionRequest
from baton_serve.workers.server.answers.turns import in_turns
from baton_serve.workers.text.detokenizer import REPLACEMENT, Detokenizer

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.requests import Request
    from baton_serve.workers.text.tokenizer import Tokenizer


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

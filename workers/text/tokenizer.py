"""The model's tokenizer: the only module of the front that imports transformers, and only when one is loaded."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.protocol.errors import BadRequestError
from core.protocol.excerpts import excerpt
from workers.text.token_bytes import byte_level_bytes, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.protocol.messages import Message

logger = logging.getLogger(__name__)

#: Characters up to which text is encoded on the event loop (about 1 ms); longer text goes to a thread.
MAX_INLINE_CHARS = 4096
#: The same for the messages that a chat template goes through.
MAX_INLINE_MESSAGES = 16
#: Long texts encoded at once, so that the next one need not wait for the longest.
NUM_THREADS = 2
#: Characters per token that may fit, of which a far longer text is probed. Prose has 4, source code 3.
PROBE_CHARS_PER_TOKEN = 16


class TokenizerError(Exception):
    """The model folder has no tokenizer we can use. One line for a person."""


class TooManyTokensError(Exception):
    """More tokens than fit. ``how_many``: for people, a number or ``more than`` one."""

    def __init__(self, how_many: str) -> None:
        super().__init__(f"{how_many} tokens")
        self.how_many = how_many


class Tokenizer:
    """Text to tokens and back. Safe to use from one event loop; ``encode_*`` may run in threads of its own.

    ``fast`` is the Rust tokenizer of the ``tokenizers`` package, ``render`` the chat template.
    """

    def __init__(
        self,
        fast: Any,
        render: Callable[[list[dict[str, str]]], str],
        eos_token_ids: frozenset[int],
        special_ids: frozenset[int],
        has_chat_template: bool = True,
        fingerprint: str = "",
    ) -> None:
        self._fast = fast
        self._render = render
        self._special_ids = special_ids
        self._size = fast.get_vocab_size(with_added_tokens=True)
        self._piece_bytes = byte_level_bytes if "ByteLevel" in repr(fast.decoder) else sentencepiece_bytes
        self._bytes_of: dict[int, bytes] = {}
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="tokenizer")
        #: Sampling one of these ends a sequence.
        self.eos_token_ids = eos_token_ids
        self.has_chat_template = has_chat_template
        #: Equal on two workers that make the same tokens of a prompt and the same text of tokens.
        self.fingerprint = fingerprint

    async def encode_text(self, text: str, max_tokens: int) -> list[int]:
        """A completion's prompt; special tokens as the model wants them in front. Raises TooManyTokensError."""

        def work() -> list[int]:
            return self._encode(text, max_tokens, add_special_tokens=True)

        return await self._run(work, inline=len(text) <= MAX_INLINE_CHARS)

    async def encode_chat(self, messages: Sequence[Message], max_tokens: int) -> list[int]:
        """A conversation, by the model's template, up to where the assistant's answer begins.

        Raises TooManyTokensError, and BadRequestError when there is no template or it refuses the messages.
        """

        def work() -> list[int]:
            return self._encode(self._rendered(messages), max_tokens, add_special_tokens=False)

        few = len(messages) <= MAX_INLINE_MESSAGES
        return await self._run(work, inline=few and sum(len(m.text()) for m in messages) <= MAX_INLINE_CHARS)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=True)
        return text

    def is_visible(self, token: int) -> bool:
        """False for tokens that never give text: special ones, and ids that pad the vocabulary."""
        return token not in self._special_ids and token < self._size

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for (a part of a character, perhaps), its leading space included."""
        known = self._bytes_of.get(token)
        if known is None:
            piece: str | None = self._fast.id_to_token(token)
            known = b"" if piece is None else self._piece_bytes(piece)
            self._bytes_of[token] = known
        return known

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _rendered(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        if not self.has_chat_template:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )
        conversation = [{"role": m.role, "content": m.text()} | ({"name": m.name} if m.name else {}) for m in messages]
        try:
            return self._render(conversation)
        except TemplateError as error:
            why = excerpt(str(error))
            raise BadRequestError(
                f"The model's chat template refuses these messages: {why}", param="messages", code="invalid_value"
            ) from None

    async def _run(self, work: Callable[[], list[int]], *, inline: bool) -> list[int]:
        return work() if inline else await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _encode(self, text: str, max_tokens: int, *, add_special_tokens: bool) -> list[int]:
        """Raises TooManyTokensError; of a text that is far too long after a look at its beginning."""
        probe = text[: PROBE_CHARS_PER_TOKEN * max_tokens]
        # Where the beginning is cut its last few tokens may be others than in the whole: far fewer than half of them.
        if len(text) > 2 * len(probe) and len(self._encoding(probe, add_special_tokens)) > 2 * max_tokens:
            raise TooManyTokensError(f"more than {max_tokens}")
        encoding = self._encoding(text, add_special_tokens)
        if len(encoding) > max_tokens:
            raise TooManyTokensError(str(len(encoding)))
        ids: list[int] = encoding.ids
        return ids

    def _encoding(self, text: str, add_special_tokens: bool) -> Any:
        """Of a batch, because that lets the event loop go on meanwhile: ``encode`` would keep the interpreter lock."""
        return self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def load(model: str, revision: str | None = None) -> Tokenizer:
    """Load from a folder or hub id. Raises TokenizerError."""
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise TokenizerError(f"cannot load a tokenizer from {model}: {_first_line(error)}") from error
    fast = getattr(loaded, "backend_tokenizer", None)
    if fast is None:
        raise TokenizerError(f"{model} has no fast tokenizer (tokenizer.json)")
    fast.no_truncation()
    fast.no_padding()

    knows_developer = "developer" in str(loaded.chat_template)

    def render(conversation: list[dict[str, str]]) -> str:
        told = conversation if knows_developer else _by_the_system(conversation)
        text: str = loaded.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
        return text

    eos_token_ids = frozenset(_eos_token_ids(model, revision, loaded))
    special_ids = frozenset(loaded.all_special_ids) | _special_added(fast)
    return Tokenizer(
        fast,
        render,
        eos_token_ids=eos_token_ids,
        special_ids=special_ids,
        has_chat_template=loaded.chat_template is not None,
        fingerprint=_fingerprint(
            fast.to_str(), loaded.chat_template, loaded.special_tokens_map, sorted(eos_token_ids), sorted(special_ids)
        ),
    )


def _by_the_system(conversation: list[dict[str, str]]) -> list[dict[str, str]]:
    """``developer`` is OpenAI's newer name for ``system``; a template that does not know it may leave it out unseen."""
    return [{**said, "role": "system"} if said["role"] == "developer" else said for said in conversation]


def _fingerprint(*parts: object) -> str:
    """32 hex digits over everything that decides between text and tokens, and where an answer ends."""
    return hashlib.sha256(orjson.dumps(parts, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _special_added(fast: Any) -> frozenset[int]:
    return frozenset(token for token, added in fast.get_added_tokens_decoder().items() if added.special)


def _eos_token_ids(model: str, revision: str | None, loaded: Any) -> set[int]:
    """What the tokenizer calls its end, and what generation_config.json and config.json list."""
    from transformers.utils import cached_file

    found = {loaded.eos_token_id} if loaded.eos_token_id is not None else set()
    for name in ("generation_config.json", "config.json"):
        try:
            path = cached_file(model, name, revision=revision)
        except OSError:
            logger.debug("%s has no %s", model, name)
            continue
        listed = orjson.loads(Path(path).read_bytes()).get("eos_token_id")
        if listed is not None:
            found |= set(listed) if isinstance(listed, list) else {listed}
    return found


def _first_line(error: Exception) -> str:
    return re.split(r"[\r\n]", str(error).strip() or type(error).__name__)[0]

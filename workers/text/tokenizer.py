"""The model's tokenizer. In the main process only this module imports transformers, and only in ``load``."""

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

    from core.protocol.openai.messages import Message

logger = logging.getLogger(__name__)

#: Text of at most this many characters is encoded on the event loop (about 1 ms), longer text in a thread.
MAX_INLINE_CHARS = 4096
#: A chat of more messages than this is rendered and encoded in a thread too.
MAX_INLINE_MESSAGES = 16
#: Number of long texts encoded at the same time, so that a text need not wait for a much longer one.
NUM_THREADS = 2
#: Of a very long text only this many characters per allowed token are encoded at first. Prose has 4 characters per
#: token, source code 3.
PROBE_CHARS_PER_TOKEN = 16


class TokenizerError(Exception):
    """The model has no usable tokenizer. The message is one line for people."""


class TooManyTokensError(Exception):
    """The text has more tokens than allowed. ``how_many``: a number, or ``more than`` a number, for error messages."""

    def __init__(self, how_many: str) -> None:
        super().__init__(f"{how_many} tokens")
        self.how_many = how_many


class Tokenizer:
    """Text to tokens and back. For use on one event loop; ``encode_*`` run in threads for long texts.

    ``fast`` is the Rust tokenizer of the ``tokenizers`` package; ``render`` applies the chat template.
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
        #: Sampling one of these tokens ends a sequence.
        self.eos_token_ids = eos_token_ids
        self.has_chat_template = has_chat_template
        #: Equal on two workers that encode every prompt to the same tokens and decode every token to the same text.
        self.fingerprint = fingerprint

    async def encode_text(self, text: str, max_tokens: int) -> list[int]:
        """The tokens of a completion's prompt, with the model's special tokens. Raises TooManyTokensError."""

        def work() -> list[int]:
            return self._encode(text, max_tokens, add_special_tokens=True)

        return await self._run(work, inline=len(text) <= MAX_INLINE_CHARS)

    async def encode_chat(self, messages: Sequence[Message], max_tokens: int) -> list[int]:
        """The tokens of a conversation in the model's chat template, up to the beginning of the assistant's answer.

        Raises TooManyTokensError; BadRequestError if there is no template or it refuses the messages.
        """

        def work() -> list[int]:
            return self._encode(self._rendered(messages), max_tokens, add_special_tokens=False)

        few = len(messages) <= MAX_INLINE_MESSAGES
        return await self._run(work, inline=few and sum(len(m.text()) for m in messages) <= MAX_INLINE_CHARS)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without special tokens."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=True)
        return text

    def is_visible(self, token: int) -> bool:
        """False for tokens that never become text: special tokens, and ids that pad the vocabulary."""
        return token not in self._special_ids and token < self._size

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for, with its leading space; maybe only a part of a character."""
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
        """Encode the text, or only its beginning if it is far too long. Raises TooManyTokensError."""
        probe = text[: PROBE_CHARS_PER_TOKEN * max_tokens]
        # The last few tokens of the cut text may differ from those of the whole text, but far fewer than half do.
        if len(text) > 2 * len(probe) and len(self._encoding(probe, add_special_tokens)) > 2 * max_tokens:
            raise TooManyTokensError(f"more than {max_tokens}")
        encoding = self._encoding(text, add_special_tokens)
        if len(encoding) > max_tokens:
            raise TooManyTokensError(str(len(encoding)))
        ids: list[int] = encoding.ids
        return ids

    def _encoding(self, text: str, add_special_tokens: bool) -> Any:
        """Encode as a batch of one, because that releases the interpreter lock, which ``encode`` would keep."""
        return self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def load(model: str, revision: str | None = None) -> Tokenizer:
    """Load the tokenizer of a model from a folder or hub id. Raises TokenizerError."""
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
        known = conversation if knows_developer else _developer_as_system(conversation)
        text: str = loaded.apply_chat_template(known, tokenize=False, add_generation_prompt=True)
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


def _developer_as_system(conversation: list[dict[str, str]]) -> list[dict[str, str]]:
    """Replace the role ``developer``, OpenAI's newer name for ``system``: a template may drop unknown roles."""
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in conversation]


def _fingerprint(*parts: object) -> str:
    """32 hex digits of a hash over everything that affects encoding, decoding and the end of an answer."""
    return hashlib.sha256(orjson.dumps(parts, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _special_added(fast: Any) -> frozenset[int]:
    return frozenset(token for token, added in fast.get_added_tokens_decoder().items() if added.special)


def _eos_token_ids(model: str, revision: str | None, loaded: Any) -> set[int]:
    """The end-of-sequence tokens that the tokenizer, generation_config.json and config.json name."""
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

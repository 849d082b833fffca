"""The model's tokenizer. It and ``model_files`` alone import transformers in the main process, when they load."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import orjson

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.messages import Message
from baton_serve.workers.parsers.families import AUTO
from baton_serve.workers.parsers.message_format import MessageFormat
from baton_serve.workers.text import model_files
from baton_serve.workers.text.chat_template import PLAIN, ChatOptions, Render, rendered, renderer

#: Text of at most this many characters is encoded on the event loop (about 1 ms), longer text in a thread.
MAX_INLINE_CHARS = 4096
#: A chat of more messages than this is rendered and encoded in a thread too.
MAX_INLINE_MESSAGES = 16
#: Number of long texts encoded at the same time, so that a text need not wait for a much longer one.
NUM_THREADS = 2
#: Of a very long text only this many characters per allowed token are encoded at first. Prose has 4 characters per
#: token, source code 3.
PROBE_CHARS_PER_TOKEN = 16

#: How a model is asked for the middle of a text: the tokens before the beginning, before the end, and before the
#: answer, in the families of models that have them.
INFILLING = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerError(Exception):
    """The model has no usable tokenizer. The message is one line for people."""


class TooManyTokensError(Exception):
    """The text has more tokens than allowed. ``how_many``: a number, or ``more than`` a number, for error messages."""

    def __init__(self, how_many: str) -> None:
        super().__init__(f"{how_many} tokens")
        self.how_many = how_many


class Tokenizer:
    """Text to tokens and back. For use on one event loop; ``encode_*`` run in threads for long texts.

    ``fast`` is the Rust tokenizer of the ``tokenizers`` package; ``render`` applies the chat template. Where ``keep``
    is given, only the last so many tokens are returned, with those that the tokenizer itself puts around a text.
    """

    def __init__(
        self,
        fast: Any,
        render: Render,
        eos_token_ids: frozenset[int],
        special_ids: frozenset[int],
        chat_template: str | None = "",
        fingerprint: str = "",
        message_format: MessageFormat | None = None,
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
        #: The model's own, as text; empty without one.
        self.chat_template = chat_template or ""
        self._has_chat_template = chat_template is not None
        #: Equal on two workers that encode every prompt to the same tokens and decode every token to the same text.
        self.fingerprint = fingerprint
        #: How answers of the model are read.
        self.message_format = message_format or MessageFormat("")

    async def encode_text(
        self, text: str, max_tokens: int, *, keep: int | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """The tokens of a completion's prompt, with the model's special tokens. Raises TooManyTokensError."""

        def work() -> list[int]:
            return self._encode(text, max_tokens, keep, add_special_tokens=add_special_tokens)

        return await self._run(work, inline=len(text) <= MAX_INLINE_CHARS)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        options: ChatOptions = PLAIN,
        *,
        keep: int | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """The tokens of a conversation in the model's chat template, up to the beginning of the assistant's answer.

        Raises TooManyTokensError; BadRequestError if there is no template or it refuses the messages.
        """

        def work() -> list[int]:
            text = self._rendered(messages, options)
            return self._encode(text, max_tokens, keep, add_special_tokens=add_special_tokens)

        few = len(messages) <= MAX_INLINE_MESSAGES and options.template is None
        few = few and not options.documents and not options.tools
        return await self._run(work, inline=few and sum(len(m.text()) for m in messages) <= MAX_INLINE_CHARS)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens of words inside a text: of each word alone, and with a space before it, as it stands in a text.

        Both are banned, however many tokens they are. (vLLM bans the second only if it has as many as the first.)
        """
        found: list[list[int]] = []
        for word in words:
            alone, spaced = (self._encoding(space + word.lstrip(), False).ids for space in ("", " "))
            if alone:
                found.append(alone)
            if alone and spaced != alone:
                found.append(spaced)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without special tokens."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=True)
        return text

    def decode_all(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, also of special ones."""
        text: str = self._fast.decode(list(tokens), skip_special_tokens=False)
        return text

    async def decode_whole(self, tokens: Sequence[int]) -> str:
        """``decode_all`` for any number of tokens."""
        if len(tokens) <= MAX_INLINE_CHARS:
            return self.decode_all(tokens)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.decode_all, tokens)

    def piece(self, token: int) -> str:
        """The vocabulary's entry of a token, empty for an id that pads the vocabulary."""
        piece: str | None = self._fast.id_to_token(token)
        return piece or ""

    def is_visible(self, token: int) -> bool:
        """False for tokens that never become text: special tokens, and ids that pad the vocabulary."""
        return token not in self._special_ids and token < self._size

    def is_text_or_mark(self, token: int) -> bool:
        """Like ``is_visible``, but the special tokens with which parts of a message begin and end have a text."""
        return self.is_visible(token) or token in self.marks

    @cached_property
    def marks(self) -> frozenset[int]:
        """The special tokens that ``message_format`` looks for."""
        texts = self.added_texts
        return frozenset(token for token in self._special_ids if self.message_format.has(texts.get(token, "\n")))

    def is_token(self, token: int) -> bool:
        """False for ids that pad the vocabulary."""
        return bool(token < self._size)

    @cached_property
    def added_texts(self) -> dict[int, str]:
        return {token: added.content for token, added in self._fast.get_added_tokens_decoder().items()}

    @cached_property
    def num_around(self) -> tuple[int, int]:
        """How many tokens of its own the tokenizer puts before and after a text."""
        mask: list[int] = self._encoding("a", True).special_tokens_mask
        inside = [index for index, is_around in enumerate(mask) if not is_around]
        return (inside[0], len(mask) - 1 - inside[-1]) if inside else (0, 0)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for, with its leading space; maybe only a part of a character."""
        known = self._bytes_of.get(token)
        if known is None:
            known = self._bytes_of[token] = self._piece_bytes(self.piece(token))
        return known

    def to_json(self) -> str:
        """The text of the tokenizer's ``tokenizer.json``. Takes up to a second, so call it in a thread."""
        text: str = self._fast.to_str()
        return text

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def infilling_prompt(self, beginning: str, end: str) -> str | None:
        """The prompt for the text between two others; None if the model has no tokens for that."""
        added = set(self.added_texts.values())
        for before_beginning, before_end, before_answer in INFILLING:
            if {before_beginning, before_end, before_answer} <= added:
                return f"{before_beginning}{beginning}{before_end}{end}{before_answer}"
        return None

    def _rendered(self, messages: Sequence[Message], options: ChatOptions) -> str:
        if not self._has_chat_template and options.template is None:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )
        return rendered(self._render, messages, options)

    async def _run(self, work: Callable[[], list[int]], *, inline: bool) -> list[int]:
        return work() if inline else await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _encode(self, text: str, max_tokens: int, keep: int | None, *, add_special_tokens: bool) -> list[int]:
        """Encode the text, or only its beginning if it is far too long. Raises TooManyTokensError.

        Only the end of a text is encoded of which only the last tokens are kept.
        """
        if keep is not None:
            end = text[-2 * PROBE_CHARS_PER_TOKEN * keep :]
            encoding = self._encoding(end, add_special_tokens)
            if len(end) < len(text) and len(encoding) < 2 * keep:  # very long tokens: the cut may be among those kept
                encoding = self._encoding(text, add_special_tokens)
            return _last(encoding, keep)
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


def load(
    model: str,
    revision: str | None = None,
    tool_call_parser: str = AUTO,
    reasoning_parser: str = AUTO,
    generation_config: str = model_files.AUTO,
) -> Tokenizer:
    """Load the tokenizer of a model from a folder or hub id. Raises TokenizerError.

    ``tool_call_parser``, ``reasoning_parser``: how answers are read, see ``MessageFormat``. ``generation_config``: a
    folder with another one than the model's, see ``model_files``.
    """
    from transformers import AutoTokenizer

    try:
        generation = model_files.generation_config(generation_config, model, revision)
        config = model_files.read_json(model, revision, "config.json")
        loaded = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
        eos_token_ids = _eos_token_ids(loaded, generation, config)
    except Exception as error:  # the libraries that read a model's files raise of everything for a broken one
        raise TokenizerError(f"cannot load a tokenizer from {model}: {_first_line(error)}") from error
    fast = getattr(loaded, "backend_tokenizer", None)
    if fast is None:
        raise TokenizerError(f"{model} has no fast tokenizer (tokenizer.json)")
    fast.no_truncation()
    fast.no_padding()

    own = getattr(loaded, "response_template", None)
    message_format = MessageFormat(str(loaded.chat_template or ""), own, tool_call_parser, reasoning_parser)
    added = fast.get_added_tokens_decoder().items()
    special_ids = frozenset(loaded.all_special_ids).union(token for token, one in added if one.special)
    return Tokenizer(
        fast,
        renderer(loaded.apply_chat_template, loaded.chat_template),
        eos_token_ids=eos_token_ids,
        special_ids=special_ids,
        chat_template=None if loaded.chat_template is None else str(loaded.chat_template),
        fingerprint=_fingerprint(
            fast.to_str(),
            loaded.chat_template,
            loaded.special_tokens_map,
            sorted(eos_token_ids),
            sorted(special_ids),
            message_format.names,
        ),
        message_format=message_format,
    )


def _last(encoding: Any, keep: int) -> list[int]:
    """The last tokens of a text, ``keep`` with those that the tokenizer puts before and after it."""
    ids: list[int] = encoding.ids
    if len(ids) <= keep:
        return ids
    inside = [index for index, is_around in enumerate(encoding.special_tokens_mask) if not is_around]
    if not inside:
        return ids[-keep:]
    before, after = ids[: inside[0]], ids[inside[-1] + 1 :]
    num_inside = keep - len(before) - len(after)
    return [*before, *ids[inside[-1] + 1 - num_inside : inside[-1] + 1], *after] if num_inside > 0 else ids[-keep:]


def _fingerprint(*parts: object) -> str:
    """32 hex digits of a hash over everything that affects encoding, decoding and the end of an answer."""
    return hashlib.sha256(orjson.dumps(parts, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _eos_token_ids(loaded: Any, *configs: dict[str, Any]) -> frozenset[int]:
    """The end-of-sequence tokens that the tokenizer, generation_config.json and config.json name. Raises ValueError."""
    found = [loaded.eos_token_id] if loaded.eos_token_id is not None else []
    for config in configs:
        listed = config.get("eos_token_id")
        if listed is not None:
            found += listed if isinstance(listed, list) else [listed]
    if not all(isinstance(token, int) for token in found):
        raise ValueError(f"eos_token_id is {found}, which are no tokens")
    return frozenset(token for token in found if token >= 0)  # -1 stands for none


def _first_line(error: Exception) -> str:
    return re.split(r"[\r\n]", str(error).strip() or type(error).__name__)[0]


def _byte_level_alphabet() -> dict[str, int]:
    """The byte of each character in GPT-2's alphabet: visible Latin-1 characters stand for themselves, those from
    U+0100 on for the remaining bytes.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level BPE piece: every character stands for one byte; an added token is plain text."""
    if all(character in _ALPHABET for character in piece):
        return bytes(_ALPHABET[character] for character in piece)
    return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a SentencePiece piece: ``<0xE2>`` stands for one byte, U+2581 for a space."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()

"""What placement knows of the prompt in any body: its beginning as bytes, and its size. Pure; never raises.

A body that only its worker judges may have anything anywhere: tools, images, prompts as lists, fields of the wrong
type. All that is left out or misread here is a worse choice of a worker, never a wrong answer.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

#: The fields that a worker puts before the prompt, or that part the cached blocks of clients (a salt, or OpenAI's key).
#: Their order differs between chat templates, so prompts that differ in one of them may share more than their bytes do.
_BEFORE: Final = (
    "cache_salt",
    "prompt_cache_key",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "tools",
    "system",
    "instructions",
)
#: The fields that may have the prompt, in the order in which they are looked for.
_PROMPTS: Final = ("messages", "prompt", "input")
#: What a part of a message counts for that is no text, bytes. An image of a million pixels is about a thousand tokens
#: in the common models; its own size says nothing, since an address is short and a file is compressed.
MEDIA_BYTES: Final = 4096
#: A text that no model reads as text, such as an image in base64, is represented by samples if it has more characters:
#: to read megabytes for each request would be slow.
_MAX_PLAIN_CHARS: Final = 512
_NUM_SAMPLES, _SAMPLE_CHARS = 8, 48
#: How deep in a part such a text is looked for: ``{"image_url": {"url": ...}}`` needs 2, an image in the result of one
#: of Anthropic's tools 4.
_MAX_DEPTH: Final = 4


def prompt_text(body: dict[str, Any]) -> bytes:
    """The prompt as bytes: equal beginnings of prompts give equal beginnings of bytes. Not what a model sees."""
    prompt = _prompt(body)
    text = prompt.encode() if isinstance(prompt, str) else _bytes_of(prompt)
    if body.keys().isdisjoint(_BEFORE):
        return text
    before = {name: body[name] for name in _BEFORE if body.get(name)}
    return _json(before) + text if before else text


def num_prompt_bytes(body: dict[str, Any]) -> int:
    """Bytes of the prompt's text, without what JSON or a chat template adds; 0 for token ids."""
    num_bytes = _num_bytes_in(_prompt(body))
    if body.keys().isdisjoint(_BEFORE):
        return num_bytes
    return (
        num_bytes
        + _num_bytes_in(body.get("system"))
        + _num_bytes_in(body.get("instructions"))
        + _num_json_bytes(body.get("tools"))
    )


def num_prompt_ids(body: dict[str, Any]) -> int | None:
    """Number of tokens of a prompt that came as token ids; None for any other prompt, or if a worker may cut it."""
    prompt = _prompt(body)
    if not isinstance(prompt, list) or body.get("truncate_prompt_tokens") is not None:
        return None
    return len(prompt) if type(prompt[0]) is int else None


def _prompt(body: dict[str, Any]) -> Any:
    """The prompt; an empty text if there is none."""
    for name in _PROMPTS:
        prompt = body.get(name)
        if prompt:
            return prompt
    return ""


def _bytes_of(prompt: Any) -> bytes:
    """A prompt that is no text: its messages one by one, or JSON."""
    if not isinstance(prompt, list) or type(prompt[0]) is int:  # thousands of token ids
        return _json(prompt)
    parts: list[bytes] = []
    for message in prompt:
        content = message.get("content") if isinstance(message, dict) else None
        parts.append(_json(_without_media(message, content)))
    return b"".join(parts)


def _without_media(message: Any, content: Any) -> Any:
    """The message, with samples in place of long texts that are no text for the model."""
    if not isinstance(content, list):
        return message
    return {**message, "content": [part if _is_text(part) else _sampled(part, _MAX_DEPTH) for part in content]}


def _is_text(part: Any) -> bool:
    return not isinstance(part, dict) or isinstance(part.get("text"), str)


def _sampled(value: Any, depth: int) -> Any:
    if isinstance(value, str) and len(value) > _MAX_PLAIN_CHARS:
        last = len(value) - _SAMPLE_CHARS
        starts = (i * last // (_NUM_SAMPLES - 1) for i in range(_NUM_SAMPLES))
        return [len(value), *(value[start : start + _SAMPLE_CHARS] for start in starts)]
    if isinstance(value, dict) and depth:
        return {name: _sampled(inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list) and depth:
        return [_sampled(inner, depth - 1) for inner in value]
    return value


def _num_bytes_in(texts: Any) -> int:
    """Bytes of a text, or of a list of messages, texts or parts; 0 for anything else."""
    if isinstance(texts, str):
        return _num_bytes(texts)
    return sum(map(_num_bytes_of, texts)) if isinstance(texts, list) else 0


def _num_bytes_of(item: Any) -> int:
    if isinstance(item, str):
        return _num_bytes(item)
    if not isinstance(item, dict):
        return 0
    if "text" in item:
        return _num_bytes_in(item["text"])
    if "content" in item or "tool_calls" in item:
        return _num_bytes_in(item.get("content")) + _num_json_bytes(item.get("tool_calls"))
    return MEDIA_BYTES


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _num_json_bytes(value: Any) -> int:
    return len(_json(value)) if value else 0


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)

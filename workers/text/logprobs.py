"""Logprobs in the shapes of both endpoints. They are added token by token, and taken once per chunk.

``as_ids``: tokens are named by their ids, not by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from baton_serve.workers.engine.api import TokenOutput
from baton_serve.workers.text.json_list import JsonList

#: OpenAI's value for a logprob of minus infinity, which JSON does not have.
LEAST_LOGPROB = -9999.0


class ChatLogprobs:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}``.

    Add a sampled token with ``add``; ``resume`` adds, on D, the token that P sampled, with the logprobs that P made of
    it, or None if they are not shown. ``take`` returns the object for the ``num_waiting`` tokens since it was last
    called.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, as_ids: bool = False) -> None:
        self._token_bytes = token_bytes
        self._as_ids = as_ids
        self._content: list[dict[str, Any]] = []

    def add(self, output: TokenOutput) -> None:
        entry = self._entry(output.token, output.logprob)
        entry["top_logprobs"] = [self._entry(token, logprob) for token, logprob in output.top or ()]
        self._content.append(entry)

    def resume(self, first_token: int, first: dict[str, Any] | None) -> None:
        self._content.extend((first or {}).get("content") or ())

    @property
    def num_waiting(self) -> int:
        return len(self._content)

    def take(self) -> dict[str, Any]:
        content, self._content = self._content, []
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        raw = self._token_bytes(token)
        name = _id_name(token) if self._as_ids else raw.decode(errors="replace")
        return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``: lists of equal length. Used as ``ChatLogprobs``.

    ``text_offset`` is the number of characters before the token: of the answer, which may begin with its prompt.
    ``prompt_chars``: the length of that prompt, else 0.
    """

    _FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

    def __init__(self, token_bytes: Callable[[int], bytes], *, as_ids: bool = False, prompt_chars: int = 0) -> None:
        self._token_bytes = token_bytes
        self._as_ids = as_ids
        self._offset = prompt_chars
        self._lists = {field: JsonList() for field in self._FIELDS}

    def add(self, output: TokenOutput) -> None:
        self._append(output.token, finite(output.logprob), output.top or (), self._offset)
        self._offset += self._length(output.token)

    def add_prompt(self, token: int, offset: int, logprob: float | None, top: Iterable[tuple[int, float]] = ()) -> None:
        """Add a token of the prompt. ``logprob`` None: of the first one, which nothing predicts."""
        if logprob is not None:
            self._append(token, finite(logprob), top, offset)
            return
        for field, value in zip(self._FIELDS, (self._name(token), None, None, offset), strict=True):
            self._lists[field].append(value)

    def _append(self, token: int, logprob: float, top: Iterable[tuple[int, float]], offset: int) -> None:
        name = self._name(token)
        others = {self._name(other): finite(value) for other, value in top}
        others.setdefault(name, logprob)
        for field, value in zip(self._FIELDS, (name, logprob, others, offset), strict=True):
            self._lists[field].append(value)

    def resume(self, first_token: int, first: dict[str, Any] | None) -> None:
        self._offset += self._length(first_token)
        for field in self._FIELDS:
            self._lists[field].extend((first or {}).get(field) or ())

    @property
    def num_waiting(self) -> int:
        return len(self._lists["tokens"])

    def take(self) -> dict[str, Any]:
        lists, self._lists = self._lists, {field: JsonList() for field in self._FIELDS}
        return {field: values.value() for field, values in lists.items()}

    def _length(self, token: int) -> int:
        """The number of characters of the token; an incomplete character counts as one."""
        return len(self._token_bytes(token).decode(errors="replace"))

    def _name(self, token: int) -> str:
        """The token's text. A part of a character is written as OpenAI does, so that two parts are different keys."""
        if self._as_ids:
            return _id_name(token)
        raw = self._token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


#: The value of ``choices[0].logprobs``.
Logprobs = ChatLogprobs | CompletionLogprobs


def _id_name(token: int) -> str:
    """vLLM's name of a token by its id."""
    return f"token_id:{token}"


def finite(logprob: float | None) -> float:
    """The logprob, or the least one that JSON has for minus infinity."""
    return LEAST_LOGPROB if logprob is None or not logprob > LEAST_LOGPROB else logprob

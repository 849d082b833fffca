"""The token ids of the prompt in the answer of a vLLM server."""

from __future__ import annotations

import msgspec


class _Choice(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")


class _Prompt(msgspec.Struct):
    """Where the prompt's token ids are: beside the choices of a chat, in the only choice of a completion."""

    choices: list[_Choice]
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_Prompt)


def prompt_ids_of(body: bytes) -> bytes:
    """The JSON list of them; empty if there is none. Raises msgspec.DecodeError."""
    prompt = _decoder.decode(body)
    ids = bytes(prompt.prompt_token_ids or prompt.choices[0].prompt_token_ids)
    return ids if ids[:1] == b"[" else b""

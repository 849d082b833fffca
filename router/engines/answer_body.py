"""The body of P's answer, as it is decoded: the parts that the router reads."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
import orjson

from baton_serve.core.protocol.handoff import HandOffSummary

_T = TypeVar("_T")
#: What stands for nothing in a field of the type ``Raw``.
NULL: Final = (b"", b"null")
#: What stands before the parameters in an answer.
_PARAMS: Final = b'"kv_transfer_params":'
#: Answers of fewer bytes are decoded whole. In longer ones it pays to skip the list of blocks only once.
_LONG_BYTES: Final = 2048


class MessageBody(msgspec.Struct):
    """The message of a chat."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    #: In the form that chunks have too. Empty: there are none.
    tool_calls: msgspec.Raw = msgspec.Raw(b"")

    def delta(self) -> dict[str, Any]:
        """The parts that have come, for a chunk."""
        parts: dict[str, Any] = {"reasoning_content": self.reasoning_content, "reasoning": self.reasoning}
        parts["content"] = self.content
        calls = bytes(self.tool_calls)
        if calls not in NULL:
            parts["tool_calls"] = orjson.Fragment(calls)
        return {name: part for name, part in parts.items() if part}


class ChoiceBody(msgspec.Struct):
    """A choice of a chat or of a completion."""

    index: int = 0
    text: str = ""
    message: MessageBody | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    finish_reason: str | None = None
    #: Empty: P has not said one.
    stop_reason: msgspec.Raw = msgspec.Raw(b"")
    token_ids: msgspec.Raw = msgspec.Raw(b"[]")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


class AnswerBody(msgspec.Struct):
    """The answer. What has the type ``Raw`` is passed on as it came."""

    id: str
    model: str
    choices: list[ChoiceBody]
    created: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    system_fingerprint: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


class UsageSoFar(msgspec.Struct):
    """The usage so far, as every chunk of a stream may have it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


_answer_decoder = msgspec.json.Decoder(AnswerBody)
_usage_decoder = msgspec.json.Decoder(UsageSoFar)
_summary_decoder = msgspec.json.Decoder(HandOffSummary)


def decoded_answer(body: bytes) -> tuple[AnswerBody, bytes, HandOffSummary]:
    """The answer, its ``kv_transfer_params`` as they came, and what the router reads of them.

    The parameters are ``null`` or empty if P holds no blocks. Raises ValueError (also as msgspec.DecodeError) for a
    body that is not such an answer.
    """
    if len(body) >= _LONG_BYTES:
        found = _with_params_last(body)
        if found is not None:
            return found
    answer = _decode(_answer_decoder, body)
    params = bytes(answer.kv_transfer_params)
    return answer, params, HandOffSummary() if params in NULL else _decode(_summary_decoder, params)


def _with_params_last(body: bytes) -> tuple[AnswerBody, bytes, HandOffSummary] | None:
    """As ``decoded_answer``, for a body that ends with the parameters. None: it does not, or is no answer.

    A decoder would skip the list of blocks to find where the parameters end, and then again in them.
    Here the two parts are decoded, each as a whole: if what is before the parameters is JSON with nothing in their
    place, and they are JSON as well, then they are the last field. A text that has the same bytes in it is no JSON up
    to there.
    """
    begin = body.find(_PARAMS) + len(_PARAMS)
    if begin < len(_PARAMS) or body[-2:] != b"}}" or body[begin - len(_PARAMS) - 1 :][:1] == b"\\":
        return None
    try:
        params = body[begin:-1]
        return _decode(_answer_decoder, body[:begin] + b"null}"), params, _decode(_summary_decoder, params)
    except ValueError:
        return None


def decoded_usage(usage: msgspec.Raw) -> UsageSoFar | None:
    """None: P has not said it."""
    try:
        return _usage_decoder.decode(usage)
    except msgspec.DecodeError:
        return None


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """Decode JSON. Raises ValueError, also if a part that the decoder skips is not UTF-8: others would refuse that."""
    if not data.isascii():
        data.decode()  # UnicodeDecodeError is a ValueError
    try:
        return decoder.decode(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None

"""What a router checks of a body that only a vLLM server judges: the fields that it acts on itself.

All other fields are passed on unread, and vLLM's own errors come back. vLLM is lax about types ("2" is 2, 1 is true);
a router is not, because both have to read a field in the same way.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.objects import Whole
from baton_serve.core.protocol.openai.requests import COMPLETION_MAX_TOKENS, Priority, UserName, blame

#: Fields that are taken out of every body. The first two name blocks to read and the host to read them from; the others
#: choose the id of the request inside vLLM, which others' requests may have, and the engine that computes it.
STRIPPED = ("kv_transfer_params", "ec_transfer_params", "request_id", "data_parallel_rank")
#: Where vLLM takes further parameters from, also the first two of the above.
_MORE_PARAMS = "vllm_xargs"
#: What orjson writes at the most.
_MAX_DEPTH = 254


class PassedOn(BaseModel):
    """What all bodies share that only a vLLM server judges."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: StrictStr | None = Field(None, description="May be missing if all vLLM servers serve the same one.")
    stream: StrictBool = False
    priority: Priority = 0
    user: UserName | None = None
    safety_identifier: UserName | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return False

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: as many as fit, or it is not known. 0 or less: vLLM judges."""
        return None


class _StreamOptions(BaseModel):
    include_usage: StrictBool = False


class _Generating(PassedOn):
    model: StrictStr
    stream_options: _StreamOptions | None = None
    max_tokens: Whole | None = None
    n: Whole | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class PassedOnChat(_Generating):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Any], Field(min_length=1)]
    max_completion_tokens: Whole | None = None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PassedOnCompletion(_Generating):
    """Body of ``POST /v1/completions``."""

    prompt: Any = None
    prompt_embeds: Any = None

    @property
    def max_new_tokens(self) -> int | None:
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens


class PassedOnResponse(PassedOn):
    """Body of ``POST /v1/responses``."""

    max_output_tokens: Whole | None = None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_output_tokens


class PassedOnMessages(PassedOn):
    """Body of ``POST /v1/messages``."""

    max_tokens: Whole | None = None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens


P = TypeVar("P", bound=PassedOn)


def validate_passed_on(kind: type[P], body: dict[str, Any]) -> P:
    """Check the fields of ``kind`` in a parsed body. Raises BadRequestError that names the parameter at fault."""
    known = {name: body[name] for name in kind.model_fields if body.get(name) is not None}
    try:
        request = kind.model_validate(known)
    except ValidationError as error:
        raise blame(error, body) from None
    if kind is PassedOnCompletion and not known.keys() & {"prompt", "prompt_embeds"}:
        raise BadRequestError(
            "Missing required parameter: 'prompt'.", param="prompt", code="missing_required_parameter"
        )
    return request


def strip(body: dict[str, Any]) -> None:
    """Take out what would let a client reach into other requests, or have vLLM call other hosts."""
    for name in STRIPPED:
        body.pop(name, None)
    more = body.get(_MORE_PARAMS)
    if isinstance(more, dict) and more.keys() & set(STRIPPED):
        body[_MORE_PARAMS] = {name: value for name, value in more.items() if name not in STRIPPED}


def check_depth(raw: bytes, body: dict[str, Any], more_levels: int = 0) -> None:
    """Raise BadRequestError for a body that is nested too deeply to be sent on: orjson parses more than it writes.

    ``more_levels``: how much deeper the router puts parts of it.
    """
    if raw.count(b"[") + raw.count(b"{") <= _MAX_DEPTH - more_levels:
        return
    nested: Any = body
    for _ in range(more_levels):
        nested = [nested]
    try:
        orjson.dumps(nested)
    except orjson.JSONEncodeError:
        raise BadRequestError(
            "We could not parse the JSON body of your request: it is nested too deeply.", code="invalid_json"
        ) from None

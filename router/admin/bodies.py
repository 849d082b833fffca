"""Bodies that operators and other routers send: a few known keys, with texts that can be encoded again.

The framework's JSON parser accepts half of a surrogate pair as text, which no JSON encoder used here can write. And
pydantic reports every unknown key, which takes minutes for a body full of them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.objects import MAX_KEYS


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


Text = Annotated[str, AfterValidator(_whole)]


class StrictBody(BaseModel):
    """A JSON object without unknown keys."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_before(cls, value: Any) -> Any:
        if isinstance(
            value, bytes
        ):  # the body is parsed only with the JSON header, which pages of other sites may not send
            raise PydanticCustomError(
                "not_json", "Send the body as JSON, with the header content-type: application/json"
            )
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise PydanticCustomError("too_many_keys", "Object has too many keys")
        return value

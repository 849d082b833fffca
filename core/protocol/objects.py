"""What every object in a client's body has in common: how many keys it may have, and how a field is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

#: Keys in one object: more than any has fields, few enough that one complaint for each is nothing.
MAX_KEYS = 64
#: The kind of complaint about a field that would have to do something, and does not here.
UNSUPPORTED = "unsupported"


class CountedObject(BaseModel):
    """An object whose keys are counted before anything else is looked at.

    pydantic collects a complaint, with a copy of the path, for everything that is wrong: a few MB of it would take
    seconds and gigabytes. So every list of clients' values fails fast, and the keys of every object are counted first.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _count_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise PydanticCustomError("too_many_keys", "Object has too many keys")
        return value


def _is_nothing(value: Any) -> Any:
    if value is not None and value is not False and value != []:
        raise PydanticCustomError(UNSUPPORTED, "not supported here")
    return value


#: A field that is taken with a value that asks for nothing, and refused by name with any other.
Unsupported = Annotated[Any, AfterValidator(_is_nothing)]

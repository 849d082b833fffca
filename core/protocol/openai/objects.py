"""The base of every object in a client's body: how many keys it may have, and how a field or a type is refused."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.excerpts import excerpt

#: Keys in one object: more than any has fields, and few enough that a complaint about each costs little.
MAX_KEYS = 64
#: Integers are below this, and not below its negative.
INTEGERS_END = 2**63
#: pydantic's type of error for a field that is not supported.
UNSUPPORTED = "unsupported"
#: pydantic's type of error for an object whose ``type`` is not supported.
UNSUPPORTED_TYPE = "unsupported_type"


class CountedObject(BaseModel):
    """An object whose keys are counted before they are validated. Keys that a class does not know are dropped.

    pydantic collects one complaint, with a copy of the path, for everything that is wrong. For a few MB of wrong values
    that takes seconds and gigabytes. So every list fails fast, and the keys of every object are counted first.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _count_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise PydanticCustomError("too_many_keys", "Object has too many keys")
        return value


class StrictObject(CountedObject):
    """An object without unknown keys."""

    model_config = ConfigDict(extra="forbid")


def without_nulls(value: Any) -> Any:
    """An object without its nulls, which mean that a field is absent; any other value as it is."""
    if isinstance(value, dict) and None in value.values():
        return {name: given for name, given in value.items() if given is not None}
    return value


def _is_nothing(value: Any) -> Any:
    if value is not None and value is not False and value != []:
        raise PydanticCustomError(UNSUPPORTED, "not supported here")
    return value


def _is_whole(value: Any) -> Any:
    """An integer that was written as a decimal, such as 64.0; beyond 64 bits the reader of JSON makes any a decimal."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < INTEGERS_END else value


#: Some clients have but one type of number, and write 64.0.
AS_WHOLE = BeforeValidator(_is_whole)
#: An integer.
Whole = Annotated[StrictInt, AS_WHOLE]
#: A field that is accepted with a value that has no effect, and refused by name with any other.
Unsupported = Annotated[Any, AfterValidator(_is_nothing)]


def of_types(known: Container[str], what: str) -> BeforeValidator:
    """Refuses an object whose ``type`` is none of the known ones, before its fields are looked at.

    ``what`` are such objects, for the complaint.
    """

    def check(value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in known:
            complaint = "{what} of type '{type}' are not supported here"
            raise PydanticCustomError(UNSUPPORTED_TYPE, complaint, {"what": what, "type": excerpt(kind)})
        return value

    return BeforeValidator(check)

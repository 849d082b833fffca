"""What both dialects have in addition to their own parameters, under the names of vLLM's extensions to chats."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictStr, ValidationError

from baton_serve.core.protocol.openai.objects import CountedObject, StrictObject, Whole, without_nulls
from baton_serve.core.protocol.openai.requests import MAX_PRIORITY, MAX_SALT_CHARS, Seed, blame


class Extended(StrictObject):
    """A body with extensions, and without unknown keys."""

    #: Which request that waits gets a worker first: lower first, then older.
    priority: Annotated[Whole, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    seed: Seed | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    #: Requests share cached blocks only with requests of the same salt.
    cache_salt: Annotated[StrictStr, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None

    @property
    def extensions(self) -> dict[str, Any]:
        """The fields of this class that the client gave."""
        given: dict[str, Any] = without_nulls({name: getattr(self, name) for name in Extended.model_fields})
        return given


E = TypeVar("E", bound=CountedObject)


def checked(kind: type[E], body: dict[str, Any]) -> E:
    """Check a parsed body; raises BadRequestError that names the parameter at fault. A null is as good as nothing."""
    try:
        return kind.model_validate(without_nulls(body))
    except ValidationError as error:
        raise blame(error, body) from None

"""The objects in bodies of both dialects: what they share, and how the types of a union are told apart."""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function, tagged_union_schema

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.excerpts import MAX_CHARS, excerpt
from baton_serve.core.protocol.openai.objects import MAX_KEYS, CountedObject, Whole, of_types, without_nulls
from baton_serve.core.protocol.openai.requests import MAX_PRIORITY, MAX_SALT_CHARS, Seed, blame

logger = logging.getLogger(__name__)
#: Clients invent keys, so only the first ones are named in the log.
MAX_NAMED = 64
_named: set[tuple[str, str]] = set()


class OpenObject(CountedObject):
    """An object whose unknown keys are dropped: the next version of a client's program has some more of them.

    The log names each of them once.
    """

    @model_validator(mode="before")
    @classmethod
    def _name_unknown(cls, value: Any) -> Any:
        # This runs before the keys are counted.
        if len(_named) < MAX_NAMED and isinstance(value, dict) and len(value) <= MAX_KEYS:
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for key in value.keys() - known:
                _name(cls.__name__, key)
        return value


def _name(of: str, key: str) -> None:
    name = of, key[:MAX_CHARS]
    if name not in _named and len(_named) < MAX_NAMED:
        _named.add(name)
        logger.info("clients send %s.%s, which is not known here and dropped", of, excerpt(key))


class Asked(OpenObject):
    """A body."""

    #: The fields that are checked and change nothing.
    HINTS: ClassVar[frozenset[str]]
    #: What a chat would act on is no unknown field: these are refused, if they are not fields of the body as well.
    OF_CHATS: ClassVar[frozenset[str]]


class Extended(Asked):
    """A body that has more than the dialect's own parameters, under the names of vLLM's extensions to chats."""

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


A = TypeVar("A", bound=Asked)


def checked(kind: type[A], body: dict[str, Any]) -> A:
    """Check a parsed body; raises BadRequestError that names the parameter at fault. A null is as good as nothing."""
    for name, value in body.items():
        if value is not None and name in kind.OF_CHATS and name not in kind.model_fields:
            raise BadRequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    try:
        return kind.model_validate(without_nulls(body))
    except ValidationError as error:
        raise blame(error, body) from None


def types_of(model: type[BaseModel]) -> tuple[str, ...]:
    """The values that its field ``type`` may have; none, if it may have any."""
    return get_args(model.model_fields["type"].annotation)


class ByType(NamedTuple):
    """Has each object of a union checked by the model that has its ``type``, and without a known one by ``default``.

    ``what``: such objects, for the complaint about a type that no model has. Empty: ``default`` takes these too.
    """

    default: type[BaseModel]
    what: str = ""

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models: tuple[type[BaseModel], ...] = get_args(union)
        names = {kind: model.__name__ for model in models for kind in types_of(model)}

        def name(value: Any) -> str:
            kind = value.get("type") if isinstance(value, dict) else None
            return names.get(kind, self.default.__name__) if isinstance(kind, str) else self.default.__name__

        tagged = tagged_union_schema({model.__name__: handler.generate_schema(model) for model in models}, name)
        if not self.what:
            return tagged
        check: Any = of_types(names, self.what).func
        return no_info_before_validator_function(check, tagged)


_UNREADABLE = {"input_image": "A picture", "input_file": "A file", "image": "A picture", "document": "A document"}


def _told(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _UNREADABLE:
        return {"type": "text", "text": f"[{_UNREADABLE[kind]} that this model cannot read]"}
    return part


#: Puts a sentence in the place of a tool's output that no model here can read. The output is not refused, because an
#: agent sends it again with every request that follows.
TOLD = BeforeValidator(_told)

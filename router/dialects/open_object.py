"""The base of objects whose unknown keys are dropped: the next version of a client's program has some more of them."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import model_validator

from baton_serve.core.protocol.excerpts import MAX_CHARS, excerpt
from baton_serve.core.protocol.openai.objects import MAX_KEYS, CountedObject

logger = logging.getLogger(__name__)
#: Clients invent keys, so only the first ones are named in the log.
MAX_NAMED = 64
_named: set[tuple[str, str]] = set()


class OpenObject(CountedObject):
    """An object whose unknown keys are dropped. The log names each of them once."""

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

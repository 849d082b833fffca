"""Parameters that change no token: checked as OpenAI checks them, and not sent on to workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictStr

from baton_serve.core.protocol.openai.objects import CountedObject

#: OpenAI's own bounds.
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
#: Baton's own bound.
MAX_CACHE_KEY_CHARS = 512

Metadata = Annotated[
    dict[
        Annotated[StrictStr, Field(max_length=MAX_METADATA_KEY_CHARS)],
        Annotated[StrictStr, Field(max_length=MAX_METADATA_CHARS)],
    ],
    Field(max_length=MAX_METADATA),
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]
Verbosity = Literal["low", "medium", "high"]
CacheKey = Annotated[StrictStr, Field(max_length=MAX_CACHE_KEY_CHARS)]


class Hints(CountedObject):
    """What clients say about a request rather than about its answer."""

    #: For the client's own records. OpenAI shows it beside stored answers, and nothing is stored here.
    metadata: Metadata | None = None
    #: There is one tier; ``priority`` says which request comes first.
    service_tier: ServiceTier | None = None
    #: How wordy OpenAI's own models are to be. Other models are told that in their messages.
    verbosity: Verbosity | None = None
    #: Requests with the same key and the same beginning are sent to the same worker, as far as its load allows.
    prompt_cache_key: CacheKey | None = None

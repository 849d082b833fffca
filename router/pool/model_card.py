"""What workers say of a model they serve, and all of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker says of a model. 0 and an empty text: it has not said."""

    #: Path or name that it was loaded from.
    root: str = ""
    #: When it was loaded, Unix seconds.
    created: int = 0
    #: Most tokens of prompt and answer together.
    max_model_len: int = 0


def merged(facts: Iterable[ModelFacts]) -> ModelFacts:
    """What holds for all workers together: the earliest time of loading, and the length that fits everywhere."""
    told = list(facts)
    return ModelFacts(
        root=next((one.root for one in told if one.root), ""),
        created=min((one.created for one in told if one.created), default=0),
        max_model_len=min((one.max_model_len for one in told if one.max_model_len), default=0),
    )

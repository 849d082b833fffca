"""JSON files that come with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

#: The values of ``WorkerSettings.generation_config`` that are no folder.
AUTO, NONE = "auto", "none"
GENERATION_CONFIG = "generation_config.json"


def read_json(model: str, revision: str | None, name: str) -> dict[str, Any]:
    """A file of a model's folder or hub id; empty if there is none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(model, name, revision=revision)
    except OSError:
        return {}
    found = orjson.loads(Path(path).read_bytes())
    return found if isinstance(found, dict) else {}


def generation_config(source: str, model: str, revision: str | None) -> dict[str, Any]:
    """What ``generation_config.json`` says: the one in the folder ``source``, or else the model's own."""
    return (
        read_json(model, revision, GENERATION_CONFIG)
        if source in (AUTO, NONE)
        else read_json(source, None, GENERATION_CONFIG)
    )

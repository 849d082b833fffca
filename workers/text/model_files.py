"""JSON files that come with a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: The values of ``WorkerSettings.generation_config`` that are no folder.
AUTO, NONE = "auto", "none"
GENERATION_CONFIG = "generation_config.json"


class ModelFileError(Exception):
    """A file cannot be read, or its values cannot be used. The message is one line for people."""


def read_json(model: str, revision: str | None, name: str) -> dict[str, Any]:
    """A file of a model's folder or hub id; empty if there is none. Raises ModelFileError.

    Python writes ``Infinity`` into such files, and reads it, though JSON has none.
    """
    from transformers.utils import cached_file

    try:
        path = cached_file(model, name, revision=revision)
    except OSError:
        return {}
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name} in {model} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{name} in {model} is no JSON object")
    return found


def generation_config(source: str, model: str, revision: str | None) -> dict[str, Any]:
    """What ``generation_config.json`` says: the one in the folder ``source``, or else the model's own.

    Raises ModelFileError.
    """
    where = (model, revision) if source in (AUTO, NONE) else (source, None)
    return read_json(*where, GENERATION_CONFIG)

"""Answers in a form that can be compared: without ids and times, and streams without where they were cut. Pure."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

#: Fields that differ from answer to answer.
_OWN = frozenset({"id", "item_id", "created", "created_at", "completed_at", "request_id", "sequence_number"})
#: Fields whose strings come in pieces.
_PIECES = frozenset({"content", "text", "delta", "arguments", "reasoning", "partial_json"})


def masked(value: Any) -> Any:
    """The same without what differs from answer to answer, and without nulls.

    A router may have asked for token ids that the client did not want, and then takes the whole field out.
    """
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items() if name not in _OWN and one is not None}
    return [masked(one) for one in value] if isinstance(value, list) else value


def folded(text: str) -> list[Any]:
    """The events of a stream; those that follow one another and are of one kind are put together."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [masked(json.loads(line)) for line in lines if line != "[DONE]"]
    groups = [list(group) for _, group in groupby(events, lambda event: event.get("type"))]
    return [*map(_together, groups), *(["[DONE]"] if "[DONE]" in lines else [])]


def _together(events: list[Any]) -> Any:
    whole = events[0]
    for event in events[1:]:
        whole = _joined("", whole, event)
    return whole


def _joined(name: str, old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: _joined(key, old.get(key), new.get(key)) for key in {**old, **new}}
    if isinstance(old, list) and isinstance(new, list):
        return _choices(old, new) if name in ("choices", "tool_calls") else [*old, *new]
    if name in _PIECES and isinstance(old, str) and isinstance(new, str):
        return old + new
    return old if new is None else new


def _choices(old: list[Any], new: list[Any]) -> list[Any]:
    """Elements that have an index, by which they are put together."""
    by_index = {one["index"]: one for one in old}
    for one in new:
        by_index[one["index"]] = _joined("", by_index[one["index"]], one) if one["index"] in by_index else one
    return [by_index[index] for index in sorted(by_index)]

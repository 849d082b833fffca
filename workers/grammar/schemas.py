"""Says in llguidance's words what a JSON schema says in others, and leaves out what is no demand. Pure.

What it cannot say stays as it is, and llguidance refuses it by name.
"""

from __future__ import annotations

from typing import Any

import orjson

#: Keywords whose value is a schema, a list of schemas, or an object of schemas.
_ONE = frozenset({"additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames"})
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_OBJECT = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
#: The formats that JSON Schema defines (2020-12, "Defined Formats"). Any other is a note of whoever wrote the schema:
#: pydantic's ``password`` and ``path``, OpenAPI's ``binary`` and ``int32``.
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
        *("uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer"),
        *("relative-json-pointer", "regex"),
    }
)
#: What a schema of names may say without demanding anything of them.
_NOTES = frozenset({"$comment", "title", "description", "default", "examples", "deprecated"})
_STRING = ("type", "string")
#: More keywords than names can have that are said in other words: notes, a type, a format and two demands. Each
#: reference to such names would look at all of them.
_MANY = len(_NOTES) + 5
#: Bytes that are written for names. What the values may be is written once for each name, and names once for each
#: reference to them, so a kilobyte of schemas nested in each other could become gigabytes.
MAX_WRITTEN_BYTES = 1 << 17


class TooLongError(ValueError):
    """A schema becomes too long in other words. The message is a sentence for people."""


class Room:
    """What may yet be written for names, in one schema or in several that become one form."""

    def __init__(self) -> None:
        self._num_bytes = MAX_WRITTEN_BYTES

    def take(self, num_bytes: int) -> None:
        """Raise TooLongError if there is no room for so much."""
        self._num_bytes -= num_bytes
        if self._num_bytes < 0:
            raise TooLongError(
                f"its 'propertyNames' take more than {MAX_WRITTEN_BYTES} bytes where each name is written with the "
                "schema of its value"
            )


def in_known_words(schema: dict[str, Any], room: Room | None = None) -> dict[str, Any]:
    """The schema of an answer. ``schema`` itself is not changed. Raises TooLongError."""
    known: dict[str, Any] = _rewritten(schema, schema, Room() if room is None else room)
    return known


def _rewritten(schema: Any, root: dict[str, Any], room: Room) -> Any:
    """One call for each level: schemas may be nested a quarter as deeply as Python's stack is."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name, value in schema.items():
        if name in _ONE and isinstance(value, dict):
            found[name] = _rewritten(value, root, room)
        elif name in _LIST and isinstance(value, list):
            found[name] = items = []
            for item in value:
                items.append(_rewritten(item, root, room))  # noqa: PERF401 (a comprehension is one more call)
        elif name in _OBJECT and isinstance(value, dict):
            found[name] = named = {}
            for key, inner in value.items():
                named[key] = _rewritten(inner, root, room)
    if "format" in found and _is_note("format", found["format"]):
        del found["format"]
    if "propertyNames" in found:
        return _with_names(found, _demands(_resolved(found["propertyNames"], root)), room)
    return found


def _resolved(names: Any, root: dict[str, Any]) -> Any:
    """The schema of the names; one that only refers to another place of the root is what stands there."""
    if not (isinstance(names, dict) and names.keys() - _NOTES == {"$ref"} and str(names["$ref"]).startswith("#/")):
        return names
    here: Any = root
    for part in names["$ref"][2:].split("/"):
        here = here.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
    return names if here is None or (isinstance(here, dict) and len(here) >= _MANY) else here


def _demands(names: Any) -> Any:
    """What is demanded of names, which are strings anyway."""
    if not isinstance(names, dict):
        return {} if names is True else names
    return {key: value for key, value in names.items() if not _is_note(key, value) and (key, value) != _STRING}


def _is_note(key: str, value: Any) -> bool:
    """Whether a keyword demands nothing."""
    return key in _NOTES or (key == "format" and isinstance(value, str) and value not in _FORMATS)


def _with_names(schema: dict[str, Any], names: Any, room: Room) -> dict[str, Any]:
    """The schema without its ``propertyNames``, if what these demand can be said by its other keywords."""
    plain = {key: value for key, value in schema.items() if key != "propertyNames"}
    if names == {}:
        return plain
    others, declared = schema.get("additionalProperties", True), schema.get("properties", {})
    if not isinstance(names, dict) or not isinstance(declared, dict) or "patternProperties" in schema:
        return schema
    if names.keys() == {"const"}:
        names = {"enum": [names["const"]]}
    if names.keys() == {"enum"} and isinstance(names["enum"], list):
        num_more = max(len(names["enum"]) - 1, 0)
        room.take(len(orjson.dumps(names["enum"])) + num_more * len(orjson.dumps(others)))
        properties = {name: declared.get(name, others) for name in names["enum"] if isinstance(name, str)}
        allowed = {name: value for name, value in properties.items() if value is not False}
        return {**plain, "properties": allowed, "additionalProperties": False}
    pattern, demands = _pattern(names), schema.get("allOf", [])
    if pattern is None or not isinstance(demands, list):
        return schema
    room.take(len(pattern))
    # Which declared names match is for llguidance to find: Python's ``re`` never ends for some patterns of clients.
    return {**plain, "allOf": [*demands, {"patternProperties": {pattern: {}}, "additionalProperties": False}]}


def _pattern(names: dict[str, Any]) -> str | None:
    """The pattern of names that have a pattern or a length, but not both."""
    if names.keys() == {"pattern"}:
        return names["pattern"] if isinstance(names["pattern"], str) else None
    if names.keys() <= {"minLength", "maxLength"} and all(type(value) is int for value in names.values()):
        return rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None

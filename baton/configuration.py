"""Where the value of a setting comes from: flag, environment, file, default, in this order. Pure: no I/O here.

Every value keeps its origin, so that a complaint names the place where a person has to change something.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from protocol.settings import SECRET, SHARED, Settings

PREFIX = "BATON_"
SHARED_SECTION = "shared"
#: ``BATON_INTERNAL_TOKEN_FILE`` holds the path of a file with the token, as container secrets are usually given.
FILE_SUFFIX = "_FILE"
MAX_SHOWN_CHARS = 60

M = TypeVar("M", bound=Settings)


class ConfigurationError(Exception):
    """What is wrong with the settings. ``problems`` are lines for a person; none of them repeats a secret."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Value:
    """A raw value and where it was found."""

    raw: Any = field(repr=False)
    origin: str


@dataclass(frozen=True)
class Document:
    """The parsed configuration file; ``path`` is for messages. Sections are known, their keys not checked yet."""

    path: str = "configuration file"
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(section: str, name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + (name if name in SHARED else f"{section}_{name}").upper()


def load(model: type[M], flags: Mapping[str, Any], environ: Mapping[str, str], document: Document) -> M:
    """Build a model's settings. Raises ConfigurationError with one line per problem."""
    problems = unknown_keys(model, document) + unknown_variables(model, environ)
    if problems:
        raise ConfigurationError(problems)
    values = gather(model, flags, environ, document)
    try:
        return model.model_validate({name: value.raw for name, value in values.items()})
    except ValidationError as error:
        raise ConfigurationError(_complaints(model, error, values)) from None


def gather(
    model: type[Settings], flags: Mapping[str, Any], environ: Mapping[str, str], document: Document
) -> dict[str, Value]:
    """The raw value of every setting that was given anywhere."""
    values: dict[str, Value] = {}
    for name in model.model_fields:
        value = _find(model, name, flags, environ, document)
        if value is not None:
            values[name] = value
    return values


def unknown_keys(model: type[Settings], document: Document) -> list[str]:
    """Keys in the file's section of this model that are no settings."""
    return [
        f"{document.path}: unknown key '{model.section}.{key}'{_guess(str(key), model.model_fields)}"
        for key in document.sections.get(model.section, {})
        if key not in model.model_fields
    ]


def unknown_shared_keys(document: Document) -> list[str]:
    """Keys in ``shared:`` that no process knows."""
    return [
        f"{document.path}: unknown key '{SHARED_SECTION}.{key}'{_guess(str(key), SHARED)}"
        for key in document.sections.get(SHARED_SECTION, {})
        if key not in SHARED
    ]


def unknown_variables(model: type[Settings], environ: Mapping[str, str]) -> list[str]:
    """Variables with this section's prefix that are no settings."""
    known = {variable(model.section, name) for name in model.model_fields}
    known |= {name + FILE_SUFFIX for name in known}
    prefix = f"{PREFIX}{model.section}_".upper()
    return [
        f"unknown environment variable {name}{_guess(name, known)}"
        for name, value in environ.items()
        if name.startswith(prefix) and name not in known and not _is_service_link(name, value)
    ]


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes puts ``BATON_ROUTER_SERVICE_HOST`` and the like into every pod beside a service of that name."""
    return "_SERVICE_" in name or "_PORT_" in name or value.startswith(("tcp://", "udp://"))


def _find(
    model: type[Settings], name: str, flags: Mapping[str, Any], environ: Mapping[str, str], document: Document
) -> Value | None:
    if flags.get(name) is not None:
        return Value(_split(model, name, flags[name]), flag(name))
    env = variable(model.section, name)
    if environ.get(env, "") != "" and not _is_service_link(env, environ[env]):
        return Value(_split(model, name, environ[env]), env)
    sections = (model.section, SHARED_SECTION) if name in SHARED else (model.section,)
    for section in sections:
        raw = document.sections.get(section, {}).get(name)
        if raw is not None:
            return Value(raw, f"{document.path}: {section}.{name}")
    return None


def _split(model: type[Settings], name: str, raw: Any) -> Any:
    """Text for a setting with several values is comma-separated."""
    if isinstance(raw, str) and takes_several(model.model_fields[name].annotation):
        return [part.strip() for part in raw.split(",") if part.strip()]
    return raw


def takes_several(annotation: Any) -> bool:
    """Whether a type is a sequence or set, also inside ``| None``."""
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        return any(takes_several(part) for part in typing.get_args(annotation))
    if origin is typing.Annotated:
        return takes_several(typing.get_args(annotation)[0])
    return origin in (list, tuple, set, frozenset)


def _complaints(model: type[Settings], error: ValidationError, values: Mapping[str, Value]) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if problem["type"] == "missing":
            lines.append(_missing(model, name))
        elif name in values:
            lines.append(f"{values[name].origin}: {_lower(message)}{_shown(name, values[name].raw)}")
        else:
            lines.append(f"{name}: {_lower(message)}" if name else message)
    return list(dict.fromkeys(lines))


def _missing(model: type[Settings], name: str) -> str:
    return (
        f"{flag(name)} is required (or {variable(model.section, name)}, or {model.section}.{name} "
        "in the configuration file)"
    )


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _shown(name: str, raw: Any) -> str:
    if name in SECRET:
        return ""
    text = repr(raw)
    return f" (got {text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + '...'})"


def _guess(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""

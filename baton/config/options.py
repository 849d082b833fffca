"""Command-line options, generated from settings models."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from baton_serve.baton.config.configuration import flag, variable
from baton_serve.core.process.settings import HIDDEN, SECRET, Settings

_LIST = "A,B,..."
#: Other names of a flag.
_ALSO = {"--url": ("--port",)}


def options(model: type[Settings]) -> list[click.Parameter]:
    """One option per setting. Values stay text: the model parses and checks values of all sources in one way.

    The option of a list may be given several times; its value is a tuple of texts.
    """
    return [_option(model, name, info) for name, info in model.model_fields.items()]


def default_text(info: FieldInfo) -> str:
    """The default as a person would write it; empty for a setting that is required or has no default."""
    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined or default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, enum.Enum):
        return str(default.value)
    if isinstance(default, list | tuple | set | frozenset):
        return ",".join(str(item) for item in default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _option(model: type[Settings], name: str, info: FieldInfo) -> click.Option:
    is_bool = _is_bool(info.annotation)
    metavar = None if is_bool else _metavar(info.annotation)
    return click.Option(
        [f"{flag(name)}/--no-{flag(name)[2:]}" if is_bool else flag(name), *_ALSO.get(flag(name), ()), name],
        type=None if is_bool else click.UNPROCESSED,
        metavar=metavar,
        default=None,
        multiple=metavar == _LIST,
        help=_help(model, name, info),
        hidden=name in HIDDEN,
        show_default=False,
    )


def _help(model: type[Settings], name: str, info: FieldInfo) -> str:
    notes = []
    if info.is_required():
        notes.append("required")
    elif default_text(info):
        notes.append(f"default: {default_text(info)}")
    env = variable(model.section, name)
    notes.append(f"env: {env}" + (f" or {env}_FILE" if name in SECRET else ""))
    return f"{info.description or ''}  [{'; '.join(notes)}]"


def _is_bool(annotation: Any) -> bool:
    return annotation is bool or set(_alternatives(annotation)) == {bool}


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union except ``None``."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for part in typing.get_args(annotation) if part is not type(None)]
    return [annotation]


def _metavar(annotation: Any) -> str:
    first = _alternatives(annotation)[0]
    if typing.get_origin(first) is typing.Literal:
        return "[" + "|".join(str(choice) for choice in typing.get_args(first)) + "]"
    if isinstance(first, type) and issubclass(first, enum.Enum):
        return "[" + "|".join(str(choice.value) for choice in first) + "]"
    if typing.get_origin(first) is tuple:
        return _LIST
    return {int: "INTEGER", float: "NUMBER"}.get(first, "TEXT")

"""Where the value of a setting comes from: flag, environment, file, default, in this order. Pure: no I/O here.

pydantic-settings reads the sources and merges them. Added here are the names of the settings, the refusal of unknown
names, and messages that name the place that has to be changed.
"""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, InitSettingsSource

from baton_serve.baton.config.sections import MODELS, settings_model
from baton_serve.core.process import failpoints
from baton_serve.core.process.settings import SECRET, SHARED, Settings
from baton_serve.workers.vllm.settings import ConnectorSettings

PREFIX = "BATON_"
#: Path of the configuration file.
CONFIG_VARIABLE = "BATON_CONFIG"
SHARED_SECTION = "shared"
#: ``BATON_INTERNAL_TOKEN_FILE`` holds the path of a file with the token, as container secrets are usually given.
FILE_SUFFIX = "_FILE"
MAX_SHOWN_CHARS = 60
#: User and password in a URL, which may have come as an address that takes none.
_USER: Final = re.compile(r"//[^\s'\"]*@")

_SERVICE_LINK = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")

M = TypeVar("M", bound=Settings)


class ConfigurationError(Exception):
    """The settings are wrong. ``problems`` are lines for a person; none of them repeats a secret."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Document:
    """The parsed configuration file; ``path`` is for messages. The sections' names are checked, their keys are not."""

    path: str = "configuration file"
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(section: str, name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + (name if name in SHARED else f"{section}_{name}").upper()


class TextSource(EnvSettingsSource):
    """Flags or environment variables: text by name. ``origin`` returns the name of a setting's flag or variable."""

    def __init__(self, model: type[Settings], texts: Mapping[str, Any], origin: Callable[[str], str]) -> None:
        super().__init__(model)
        self.env_vars = texts
        self.origin = origin

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self.env_vars.get(self.origin(field_name)), field_name, False

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """The values of a list are separated by commas or by newlines: a file of secrets may have one a line.

        A text with commas and no values stays as it is, to be refused: without keys everybody would be let in.
        """
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in re.split(r"[,\n]", value) if part.strip()]
        return parts if parts or not value else value


class SectionSource(InitSettingsSource):
    """The settings of a model from a section of the file. A key without a value counts as missing."""

    def __init__(self, model: type[Settings], document: Document, section: str) -> None:
        found = document.sections.get(section, {})
        super().__init__(model, {name: found[name] for name in model.model_fields if found.get(name) is not None})
        self._place = f"{document.path}: {section}"

    def __repr__(self) -> str:  # the inherited one shows values
        return f"{type(self).__name__}({self._place})"

    def origin(self, name: str) -> str:
        return f"{self._place}.{name}"


Sources = tuple[TextSource | SectionSource, ...]


def load(model: type[M], flags: Mapping[str, Any], environ: Mapping[str, str], document: Document) -> M:
    """Build a model's settings. Raises ConfigurationError with one line per problem."""
    problems = unknown_keys(model, document) + unknown_variables(model, environ) + _wrong_failpoints(environ)
    if problems:
        raise ConfigurationError(problems)
    sources = _sources(model, flags, environ, document)
    try:
        return model(_build_sources=(sources, {}))
    except ValidationError as error:
        raise ConfigurationError(_complaints(model, error, sources)) from None


def gather(model: type[Settings], environ: Mapping[str, str], document: Document) -> Mapping[str, Any]:
    """The raw values of the settings that environment and file give, by name."""
    return ChainMap(*(source() for source in _sources(model, {}, environ, document)))


def _sources(
    model: type[Settings], flags: Mapping[str, Any], environ: Mapping[str, str], document: Document
) -> Sources:
    """All sources of settings. Where several give a setting, the first of them counts."""
    variables = {name: value for name, value in environ.items() if value and not _is_service_link(name, value)}
    return (
        TextSource(model, {flag(name): _as_text(value) for name, value in flags.items()}, flag),
        TextSource(model, variables, partial(variable, model.section)),
        SectionSource(model, document, model.section),
        SectionSource(model, document, SHARED_SECTION),
    )


def _as_text(value: Any) -> Any:
    """A flag that was given several times, as if all were in one; None: not at all."""
    if not isinstance(value, tuple):
        return value
    return ",".join(value) if value else None


#: Variables of the build, of ``docker compose`` and of the tests, which may be exported where processes start.
OF_TOOLS = (
    "BATON_COMPILE",
    "BATON_COMPILED",
    "BATON_DECODE_GPUS",
    "BATON_DECODE_TP",
    "BATON_FUZZ",
    "BATON_FUZZ_SEED",
    "BATON_GPU_MEMORY_FRACTION",
    "BATON_PREFILL_GPUS",
    "BATON_PREFILL_TP",
)


def unknown_keys(model: type[Settings], document: Document) -> list[str]:
    """Keys in the file's section of this model that are no settings."""
    return [
        f"{document.path}: unknown key '{model.section}.{key}'{_guess(str(key), model.model_fields)}"
        for key in document.sections.get(model.section, {})
        if key not in model.model_fields
    ]


def unknown_shared_keys(document: Document) -> list[str]:
    """Keys in the section ``shared`` that are settings of no process."""
    return [
        f"{document.path}: unknown key '{SHARED_SECTION}.{key}'{_guess(str(key), SHARED)}"
        for key in document.sections.get(SHARED_SECTION, {})
        if key not in SHARED
    ]


def unknown_variables(model: type[Settings], environ: Mapping[str, str]) -> list[str]:
    """Variables that begin with ``BATON_`` and are settings of no process.

    All are checked, not only this model's: if the name of a token's variable is misspelled, an operator believes that a
    port is guarded although it is not.
    """
    known = _known_variables(model)
    return [
        f"unknown environment variable {name}{_guess(name, known)}"
        for name, value in environ.items()
        if name.startswith(PREFIX) and name not in known and not _is_service_link(name, value)
    ]


def _wrong_failpoints(environ: Mapping[str, str]) -> list[str]:
    try:
        failpoints.parse(environ.get(failpoints.VARIABLE, ""))
    except failpoints.FailpointError as error:
        return [str(error)]
    return []


def _known_variables(model: type[Settings]) -> set[str]:
    # Those of vLLM servers may be in the same environment; `baton up` gives each of its servers its own.
    known = {CONFIG_VARIABLE, failpoints.VARIABLE, *OF_TOOLS, *ConnectorSettings.variables()}
    for each in (model, *(settings_model(section) for section in MODELS)):
        for name in each.model_fields:
            known.add(variable(each.section, name))
            if name in SECRET:
                known.add(variable(each.section, name) + FILE_SUFFIX)
    return known


def _is_service_link(name: str, value: str) -> bool:
    """Kubernetes puts ``BATON_ROUTER_SERVICE_HOST`` and the like into every pod in the namespace of a service of that
    name.

    One of them, ``BATON_ROUTER_PORT``, has the name of a setting, but a URL for a value.
    """
    is_url = name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    return is_url or _SERVICE_LINK.fullmatch(name) is not None


def _complaints(model: type[Settings], error: ValidationError, sources: Sources) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if problem["type"] == "tuple_type":  # which YAML does not have
            message = "Input should be a list, as in [a, b]"
        source = next((source for source in sources if name in source()), None)
        if problem["type"] == "missing":
            lines.append(_missing(model, name))
        elif source is not None:
            lines.append(f"{source.origin(name)}: {_lower(message)}{_shown(name, source()[name])}")
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
    text = _USER.sub("//...@", repr(raw))
    return f" (got {text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + '...'})"


def _guess(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""

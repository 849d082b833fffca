"""Reads the files that settings come from: the configuration file, and files with secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from baton_serve.baton.config.configuration import (
    FILE_SUFFIX,
    PREFIX,
    SHARED_SECTION,
    ConfigurationError,
    Document,
    unknown_shared_keys,
)
from baton_serve.baton.config.sections import MODELS
from baton_serve.core.process.settings import SECRET


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """A key occurs twice, so that one of its values would be ignored."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, as YAML demands; PyYAML itself takes the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _DuplicateKeyError(problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: str | None) -> Document:
    """Parse a configuration file; None stands for an empty one. Raises ConfigurationError."""
    if path is None:
        return Document()
    sections = _parse(path)
    unknown = [name for name in sections if name != SHARED_SECTION and name not in MODELS]
    if unknown:
        known = ", ".join([SHARED_SECTION, *MODELS])
        raise ConfigurationError([f"{path}: unknown key '{name}'; the sections are {known}" for name in unknown])
    document = Document(path, sections)
    problems = unknown_shared_keys(document)
    if problems:
        raise ConfigurationError(problems)
    return document


def read_secret_files(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with ``BATON_<SECRET>`` set from the file that ``BATON_<SECRET>_FILE`` names.

    Raises ConfigurationError when a file cannot be read or is empty, or when both variables are set.
    """
    result = dict(environ)
    for name in sorted(SECRET):
        variable = PREFIX + name.upper()
        path = environ.get(variable + FILE_SUFFIX, "")
        if not path:
            continue
        if environ.get(variable, ""):
            raise ConfigurationError([f"{variable} and {variable}{FILE_SUFFIX} are both set; use one"])
        result[variable] = _read_secret(variable + FILE_SUFFIX, path)
    return result


def _read_secret(variable: str, path: str) -> str:
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{variable}: cannot read {path}: {_reason(error)}"]) from None
    if not secret:
        raise ConfigurationError([f"{variable}: {path} is empty"])
    return secret


def _parse(path: str) -> dict[str, dict[str, Any]]:
    try:
        content = yaml.load(Path(path).read_text(), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"cannot read {path}: {_reason(error)}"]) from None
    except yaml.MarkedYAMLError as error:  # its own text quotes the file, which may hold secrets
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        reason = error.problem if isinstance(error, _DuplicateKeyError) else "not valid YAML"
        raise ConfigurationError([f"{path}:{line} {reason}"]) from None
    except yaml.YAMLError:
        raise ConfigurationError([f"{path}: not valid YAML"]) from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigurationError([f"{path}: must be a mapping of sections"])
    for name, section in content.items():
        if section is not None and not isinstance(section, dict):
            raise ConfigurationError([f"{path}: section '{name}' must be a mapping of settings"])
    return {str(name): section or {} for name, section in content.items()}


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "not UTF-8 text"

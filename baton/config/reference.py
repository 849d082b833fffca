"""Every setting as Markdown: docs/settings.md is generated here from the models."""

from __future__ import annotations

from baton_serve.baton.config.configuration import flag, variable
from baton_serve.baton.config.options import default_text
from baton_serve.baton.config.sections import COMMANDS, MODELS, settings_model
from baton_serve.core.process.settings import HIDDEN, Settings

HEADER = """# Settings

Written by `baton settings > docs/settings.md`; change the models it is generated from instead.

A flag wins over its environment variable, that over the YAML file given with `--config FILE` or `BATON_CONFIG`, that
over the default. In the file a setting is a key, with underscores, in the section of its process; what has a variable
without the name of a process may also be in the section `shared`. Unknown keys and variables are refused. A secret may
be given as a file: `BATON_INTERNAL_TOKEN_FILE` and the like name one. Lists are comma-separated in flags and
variables, and a flag may be given several times; a file may have one value in each line.
"""


def markdown() -> str:
    """The whole page, with one table per section."""
    tables = (f"## {_title(section)}\n\n{_table(settings_model(section))}" for section in MODELS)
    return "\n\n".join([HEADER.strip(), *tables])


def _title(section: str) -> str:
    commands = ", ".join(f"`baton {command}`" for command in COMMANDS.get(section, (section,)))
    return f"{commands} (section `{section}`)" if section in COMMANDS else commands


def _table(model: type[Settings]) -> str:
    lines = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if name not in HIDDEN:
            default = "required" if info.is_required() else default_text(info)
            shown = f"`{default}`" if default else ""
            meaning = (info.description or "").replace("|", "\\|")
            lines.append(f"| `{flag(name)}` | `{variable(model.section, name)}` | {shown} | {meaning} |")
    return "\n".join(lines)

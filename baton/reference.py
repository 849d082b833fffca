"""Every setting as Markdown, generated from the models, so that the README cannot say anything else."""

from __future__ import annotations

from baton.configuration import flag, variable
from baton.options import default_text
from baton.sections import MODELS, settings_model
from protocol.settings import HIDDEN, Settings


def markdown() -> str:
    """One table per section."""
    return "\n\n".join(f"### `{section}`\n\n{_table(settings_model(section))}" for section in MODELS)


def _table(model: type[Settings]) -> str:
    lines = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for name, info in model.model_fields.items():
        if name not in HIDDEN:
            default = "required" if info.is_required() else default_text(info)
            shown = f"`{default}`" if default else ""
            meaning = (info.description or "").replace("|", "\\|")
            lines.append(f"| `{flag(name)}` | `{variable(model.section, name)}` | {shown} | {meaning} |")
    return "\n".join(lines)

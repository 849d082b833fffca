"""The sections of the configuration file, and the settings model of each, which is imported only when it is needed."""

from __future__ import annotations

import importlib

from baton_serve.core.process.settings import Settings

#: Section to ``module:class``, the module without ``baton_serve``. ``shared`` has no model: its keys are the
#: shared settings of all models.
MODELS = {
    "router": "router.settings:RouterSettings",
    "worker": "workers.settings:WorkerSettings",
    "up": "baton.settings:UpSettings",
    "admin": "baton.settings:AdminSettings",
}
#: The commands that take their settings from a section that is not named after a command.
COMMANDS = {"admin": ("requests", "workers", "top", "abort", "drain", "resume")}


def settings_model(section: str) -> type[Settings]:
    """The model of a section in ``MODELS``."""
    module, _, name = MODELS[section].partition(":")
    model = getattr(importlib.import_module(f"baton_serve.{module}"), name)
    if not (isinstance(model, type) and issubclass(model, Settings)):
        raise TypeError(f"{MODELS[section]} does not derive from core.process.settings.Settings")
    return model

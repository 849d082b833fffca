"""What is sampled with where a request says nothing: what the model's makers recommend in a file that comes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import ChatRequest, validate
from baton_serve.workers.text.model_files import AUTO, GENERATION_CONFIG, NONE, ModelFileError, generation_config

#: Their names in the file, with those of a request.
_NAMES = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """A parameter that is None has the API's own default. ``max_tokens`` is for chats: completions have their own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    @property
    def given(self) -> dict[str, float]:
        """Those that are in force, by the names that requests have for them."""
        return {name: value for name, value in vars(self).items() if value is not None}


def load(source: str, model: str, revision: str | None) -> SamplingDefaults:
    """The defaults of a model. ``source``: the worker's ``generation_config``. Raises ModelFileError."""
    if source == NONE:
        return SamplingDefaults()
    config = generation_config(source, model, revision)
    if not config and source != AUTO:
        raise ModelFileError(f"there is no {GENERATION_CONFIG} in {source}")
    return _checked({name: config[key] for key, name in _NAMES.items() if config.get(key) is not None})


def _checked(values: dict[str, Any]) -> SamplingDefaults:
    """By the rules for requests."""
    try:
        found = validate(ChatRequest, {"model": "m", "messages": [{"role": "user", "content": ""}], **values})
    except BadRequestError as error:
        raise ModelFileError(
            f"{GENERATION_CONFIG} cannot be used: {error.message} Without it: --generation-config none"
        ) from None
    return SamplingDefaults(**{name: getattr(found, name) for name in values})

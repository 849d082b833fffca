"""How many answers a request asks for: ``n``, ``best_of``, and lists of prompts. A router makes one request of each.

Workers compute one answer to one prompt, so their validation (``requests``) knows none of these.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field, StrictStr, ValidationError

from baton_serve.core.protocol.errors import invalid_value
from baton_serve.core.protocol.openai.objects import CountedObject, Whole
from baton_serve.core.protocol.openai.requests import TokenId, blame

#: OpenAI's own bounds.
MAX_N = 128
MAX_BEST_OF = 20

Prompt = str | list[int]


class ChoiceFields(CountedObject):
    """``n`` of chats and completions."""

    n: Annotated[Whole, Field(ge=1, le=MAX_N)] | None = None


class CompletionChoiceFields(ChoiceFields):
    """``best_of`` and a list of prompts, of completions only."""

    #: As many answers are computed for each prompt, and the ``n`` with the most likely tokens are given.
    best_of: Annotated[Whole, Field(ge=1, le=MAX_BEST_OF)] | None = None


class _Prompts(CountedObject):
    prompt: (
        Annotated[list[StrictStr], Field(fail_fast=True)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]], Field(fail_fast=True)]
    )


class Choices(msgspec.Struct, frozen=True):
    """Which answers a request asks for. ``prompts``: the listed prompts; empty: there is one prompt."""

    n: int = 1
    best_of: int = 1
    prompts: tuple[Prompt, ...] = ()

    @property
    def num_prompts(self) -> int:
        """The number of prompts."""
        return len(self.prompts) or 1

    @property
    def num_computed(self) -> int:
        """The number of answers that are computed."""
        return self.num_prompts * self.best_of


def take_choices(body: dict[str, Any], *, chat: bool) -> Choices | None:
    """Take the fields out of ``body``, which is then a request for one answer to the first prompt.

    Returns None if that is what it was. Raises BadRequestError.
    """
    prompts = () if chat else _prompts(body)
    kind = ChoiceFields if chat else CompletionChoiceFields
    asked = {name: body[name] for name in kind.model_fields if body.get(name) is not None}
    try:
        fields = kind.model_validate(asked)
    except ValidationError as error:
        raise blame(error, body) from None
    n = fields.n or 1
    best_of = (fields.best_of if isinstance(fields, CompletionChoiceFields) else None) or n
    choices = Choices(n, best_of, prompts)
    _check(choices, streams=bool(body.get("stream")))
    for name in kind.model_fields:
        body.pop(name, None)
    if prompts:
        body["prompt"] = prompts[0]
    return None if choices == Choices() else choices


def _prompts(body: dict[str, Any]) -> tuple[Prompt, ...]:
    """The prompts of a list of several, empty for any other. Raises BadRequestError."""
    prompt = body.get("prompt")
    if not (isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list)):
        return ()
    try:
        return tuple(_Prompts.model_validate({"prompt": prompt}).prompt)
    except ValidationError as error:
        raise blame(error, body) from None


def _check(choices: Choices, *, streams: bool) -> None:
    """Raise BadRequestError for numbers that contradict each other."""
    if choices.best_of < choices.n:
        raise invalid_value("best_of", f"'best_of' is {choices.best_of}, less than 'n', {choices.n}.")
    if streams and choices.best_of > choices.n:
        raise invalid_value(
            "best_of", "Which answers are best is known when all have ended, so 'best_of' above 'n' cannot be streamed."
        )

"""From the fields of a body to the choices that it asks for: what each is sent to workers as. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.core.protocol.request_ids import ROUTER_ID_CHARS

#: Hex digits of a choice's number, in its id.
_NUMBER_CHARS = 4
#: Most choices of a request that have ids of their own.
MAX_CHOICES = 16**_NUMBER_CHARS
_SEEDS = 2**64


def planned(choices: Choices, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One body for each choice, prompt after prompt. ``fields``: the body for one answer to the first prompt.

    With a seed, each choice of a prompt has the next seed, as with vLLM. ``best_of`` ranks answers by their logprobs.
    """
    common = {**fields, "logprobs": fields.get("logprobs") or 0} if choices.best_of > choices.n else fields
    for number in range(choices.num_prompts):
        of_prompt = {**common, "prompt": choices.prompts[number]} if choices.prompts else common
        for index in range(choices.best_of):
            seed = fields.get("seed")
            yield of_prompt if seed is None else {**of_prompt, "seed": _wrapped(seed + index)}


def _wrapped(seed: int) -> int:
    """A seed of 64 bits, signed."""
    return (seed + _SEEDS // 2) % _SEEDS - _SEEDS // 2


def choice_id(request_id: str, index: int) -> str:
    """The id of a choice for workers: the request's id, with the index in place of the digits before the router's id.

    People see the beginning, which is the request's. Workers find a dead router's requests by the end, the router's id.
    """
    head, router_id = request_id[:-ROUTER_ID_CHARS], request_id[-ROUTER_ID_CHARS:]
    return f"{head[:-_NUMBER_CHARS]}{index:0{_NUMBER_CHARS}x}{router_id}"

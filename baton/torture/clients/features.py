"""What some questions ask for beyond one text: several answers, lists of prompts, forms, tools, scores of the prompt.

Drawn from a seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton_serve.baton.torture.records import Question

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

#: A schema without free texts, which the demo model would not end.
SCHEMA = {
    "type": "object",
    "properties": {
        "legs": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 8},
        "hand": {"enum": ["left", "right"]},
    },
    "required": ["legs", "hand"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("pass_on", "drop")]


def with_feature(rng: random.Random, question: Question) -> Question:
    """The question, in one of three cases with something more."""
    if rng.random() > 1 / 3:
        return question
    possible = [several, form, *((tools,) if question.chat else (prompts, echo, scores))]
    add: Callable[[random.Random, dict[str, Any]], dict[str, Any]] = rng.choice(possible)
    return Question(question.number, question.chat, add(rng, dict(question.body)))


def several(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Several answers, which differ by their seeds."""
    seed = body.get("seed", rng.randrange(2**31))
    return {**body, "n": rng.randint(2, 4), "temperature": body["temperature"] or 1, "seed": seed}


def prompts(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A list of prompts that begin alike."""
    prompt = body["prompt"]
    return {**body, "prompt": [prompt, *(prompt[: rng.randint(1, len(prompt))] for _ in range(rng.randint(1, 2)))]}


def form(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """JSON by a schema."""
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    return {**body, "response_format": asked, "ignore_eos": False, "max_tokens": rng.randint(2, 200)}


def tools(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Calls that have to be made."""
    named = {"type": "function", "function": {"name": "drop"}}
    choice = rng.choice(("required", named))
    without_stop = {name: value for name, value in body.items() if name != "stop"}
    return {**without_stop, "tools": TOOLS, "tool_choice": choice, "ignore_eos": False, "max_tokens": 200}


def echo(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The prompt before the answer, with the logprobs of both: all of an answer, one token of it, or none."""
    return {**body, "echo": True, "logprobs": rng.randint(0, 5), "max_tokens": rng.choice((0, 1, body["max_tokens"]))}


def scores(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The logprobs of the prompt beside the answer."""
    return {**body, "prompt_logprobs": rng.randint(0, 5)}


def singles(question: Question) -> Iterator[Question]:
    """The questions for one answer each that together ask the same, in the order of the choices."""
    body, n = question.body, question.body.get("n", 1)
    prompt = body.get("prompt")
    each = prompt if isinstance(prompt, list) and isinstance(prompt[0], list) else [prompt]
    for one in each:
        for index in range(n):
            fields = {name: value for name, value in body.items() if name != "n"}
            if prompt is not None:
                fields["prompt"] = one
            if "seed" in fields:
                fields["seed"] += index
            yield Question(question.number, question.chat, fields)


def num_per_prompt(question: Question) -> int:
    """How many answers there are to each prompt."""
    n: int = question.body.get("n", 1)
    return n

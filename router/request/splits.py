"""Which chats and completions a vLLM prefill worker and a vLLM decode worker cannot share, and why. Pure.

Such a request goes whole to one decode worker. ``python -m baton_serve.router.request.splits`` prints the table for the
docs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Whole(NamedTuple):
    """A kind of request that one worker does alone. ``applies`` is given the body's value, None if it has none."""

    field: str
    value: str
    applies: Callable[[Any], bool]
    why: str


def _is_not(*harmless: Any) -> Callable[[Any], bool]:
    """True for any value but these and null. vLLM is lax about types, so what is like none of them counts as well."""

    def applies(value: Any) -> bool:
        return value is not None and not any(type(value) is type(one) and value == one for one in harmless)

    return applies


def _is_several(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts, and not one prompt as token ids."""
    return isinstance(prompt, list) and not (prompt and type(prompt[0]) is int)


def _is_not_positive(limit: Any) -> bool:
    return limit is not None and not (type(limit) is int and limit > 0)


def _is_forced(choice: Any) -> bool:
    return choice is not None and choice not in ("none", "auto")


def _is_relative(truncate: Any) -> bool:
    return truncate is not None and not (type(truncate) is int and truncate >= 0)


WHOLE: tuple[Whole, ...] = (
    Whole(
        "n", "above 1", _is_not(1), "All sequences would read one hand-off, and the first that has frees the blocks."
    ),
    Whole("best_of", "above 1", _is_not(1), "As n."),
    Whole("use_beam_search", "true", _is_not(False), "Each beam is a request of its own, without the hand-off."),
    Whole("prompt", "a list of prompts", _is_several, "All prompts would read the blocks of one."),
    Whole("prompt_embeds", "any", _is_not(), "The prompt has no token ids, by which another worker could go on."),
    Whole("prompt_logprobs", "any", _is_not(), "Only who computes the prompt has them; D would compute it again."),
    Whole("echo", "true", _is_not(False), "As prompt_logprobs, which it implies wherever logprobs are asked for."),
    Whole("max_tokens", "below 1", _is_not_positive, "There is no token to hand over, or vLLM has to refuse it."),
    Whole("max_completion_tokens", "below 1", _is_not_positive, "As max_tokens."),
    Whole("tool_choice", "required, or a function", _is_forced, "P's one token would be parsed as a whole tool call."),
    Whole(
        "truncate_prompt_tokens",
        "-1",
        _is_relative,
        "How much is cut depends on max_tokens, which is 1 on P: the prompts would differ.",
    ),
    Whole(
        "routed_experts_prompt_start",
        "above 0",
        _is_not(0),
        "Only who computes the prompt knows which experts computed it.",
    ),
)


def why_whole(body: Mapping[str, Any]) -> Whole | None:
    """The first row that applies to a chat or completion; None: a P and a D can share it."""
    return next((row for row in WHOLE if row.applies(body.get(row.field))), None)


def table() -> str:
    """The rows in Markdown."""
    rows = [f"| `{row.field}` | {row.value} | {row.why} |" for row in WHOLE]
    return "\n".join(["| field | value | why one worker does it alone |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())

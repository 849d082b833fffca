"""Which streams of a vLLM server another one can continue exactly, after prompt and tokens so far. Pure.

The next server gets the tokens so far as part of its prompt. It is the same request only if nothing in it depends on
where the prompt ends. Each field below is known not to; with any other field a broken stream ends with an error.
"""

from __future__ import annotations

from typing import Any

#: Fields that mean the same for the rest of an answer.
HARMLESS = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",  # counts the tokens of the prompt as well
        "logit_bias",
        "ignore_eos",
        "stop_token_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "add_special_tokens",  # says how a text becomes tokens, which the next server gets as tokens
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "return_token_ids",
        "priority",
        "user",
        "safety_identifier",
        "metadata",
        "store",
        "service_tier",
        "cache_salt",
        "prompt_cache_key",
    }
)
#: Fields that are harmless with these values only. The reasons: a penalty counts the tokens of the answer; a stop
#: string may have begun before the break; a parser of tools has read the text so far; logprobs of a completion carry
#: the place in the text.
HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stop": ("", []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "use_beam_search": (False,),
    "continue_final_message": (False,),
}


def can_continue(fields: dict[str, Any]) -> bool:
    """Whether a stream of the request can be continued: all that was asked means the same for the rest of the answer.

    A ``seed`` can be kept only where nothing is drawn at random: vLLM draws from one sequence of random numbers, which
    would begin anew.
    """
    return all(_is_harmless(name, value, fields) for name, value in fields.items() if value is not None)


def _is_harmless(name: str, value: Any, fields: dict[str, Any]) -> bool:
    match name:
        case "max_tokens" | "max_completion_tokens" | "min_tokens":  # what is left of them is computed
            return type(value) is int
        case "seed":
            return fields.get("temperature") == 0
        case "stream_options":
            return isinstance(value, dict) and value.keys() <= {"include_usage"}
        case "messages":
            return isinstance(value, list) and all(map(_is_text, value))
        case "prompt":
            return isinstance(value, str) or (isinstance(value, list) and all(type(one) is int for one in value))
    return name in HARMLESS or value in HARMLESS_VALUES.get(name, ())


def _is_text(message: Any) -> bool:
    """Whether a message is text only. vLLM ignores token ids for a prompt with pictures or sounds."""
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)

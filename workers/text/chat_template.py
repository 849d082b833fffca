"""From a conversation to the text of a prompt: what a chat template is given, and what it may raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from core.protocol.errors import BadRequestError
from core.protocol.excerpts import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.protocol.openai.messages import Message

#: What a template raises besides its own errors if it meets values that its author has not thought of: a template is a
#: program, and its variables are the client's.
_MISTAKES = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class ChatOptions:
    """How a conversation is rendered. ``template`` None: by the model's own one."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    documents: list[dict[str, str]] | None = None
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)


#: As a model's template is used by most chats.
PLAIN = ChatOptions()


class Render(Protocol):
    """Applies a chat template."""

    def __call__(self, conversation: list[dict[str, Any]], options: ChatOptions) -> str: ...


def rendered(render: Render, messages: Sequence[Message], options: ChatOptions) -> str:
    """The text of a conversation. Raises BadRequestError if the template refuses it or fails."""
    from jinja2 import TemplateError

    try:
        return render([message.for_template() for message in messages], options)
    except (TemplateError, *_MISTAKES) as error:
        whose, param = ("The model's chat template", "messages")
        if options.template is not None:
            whose, param = ("The chat template", "chat_template")
        why = excerpt(str(error) or type(error).__name__)
        raise BadRequestError(f"{whose} refuses these messages: {why}", param=param, code="invalid_value") from None


def renderer(apply: Callable[..., Any], own: str | None) -> Render:
    """Uses ``apply``, which is ``apply_chat_template`` of transformers; ``own`` is the model's template."""

    def render(conversation: list[dict[str, Any]], options: ChatOptions) -> str:
        template = own if options.template is None else options.template
        known = conversation if "developer" in str(template) else _developer_as_system(conversation)
        text: str = apply(
            known,
            tokenize=False,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            chat_template=options.template,
            documents=options.documents,
            tools=options.tools,
            **options.variables,
        )
        return text

    return render


def _developer_as_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the role ``developer``, OpenAI's newer name for ``system``: a template may drop unknown roles."""
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in conversation]

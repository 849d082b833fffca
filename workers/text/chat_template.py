"""From a conversation to the text of a prompt: what a chat template is given, and what it may raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.messages import Message
from baton_serve.workers.text.content_forms import MISTAKES, ContentForms, forms_of

logger = logging.getLogger(__name__)

#: The forms of so many templates of clients are kept.
_NUM_TEMPLATES = 32


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
#: Applies a chat template to a conversation.
Render = Callable[[list[dict[str, Any]], ChatOptions], str]


def rendered(render: Render, messages: Sequence[Message], options: ChatOptions) -> str:
    """The text of a conversation. Raises BadRequestError if the template refuses it or fails."""
    from jinja2 import TemplateError

    try:
        return render([message.for_template() for message in messages], options)
    except (TemplateError, *MISTAKES) as error:
        whose, param = ("The model's chat template", "messages")
        if options.template is not None:
            whose, param = ("The chat template", "chat_template")
        why = excerpt(str(error) or type(error).__name__)
        raise BadRequestError(f"{whose} refuses these messages: {why}", param=param, code="invalid_value") from None


def renderer(apply: Callable[..., Any], own: str | None) -> Render:
    """Uses ``apply``, which is ``apply_chat_template`` of transformers; ``own`` is the model's template.

    No prompt is without what a user says: a template that shows it in neither form is of no use for chats.
    """

    def forms(template: str | None) -> ContentForms:
        def render_plainly(conversation: list[dict[str, Any]]) -> str:
            text: str = apply(conversation, tokenize=False, add_generation_prompt=True, chat_template=template)
            return text

        return forms_of(render_plainly)

    forms_of_clients = lru_cache(maxsize=_NUM_TEMPLATES)(forms)
    own_forms = None if own is None else forms(None)
    if own_forms is not None and not own_forms.shows_users:
        logger.warning("the model's chat template leaves out what a user says: chats are refused")

    def render(conversation: list[dict[str, Any]], options: ChatOptions) -> str:
        template = own if options.template is None else options.template
        known = conversation if "developer" in str(template) else _developer_as_system(conversation)
        wanted = own_forms if options.template is None else forms_of_clients(options.template)
        if wanted is None or not wanted.shows_users:
            raise ValueError("it leaves out what a user says")
        text: str = apply(
            wanted.of(known),
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

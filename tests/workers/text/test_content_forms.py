"""The form in which a chat template wants contents: whatever it is, what was said is in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from baton_serve.core.protocol.openai.messages import Message
from baton_serve.workers.text.chat_template import ChatOptions, Render, renderer
from tests.kits import tiny_models

EACH = "{% for m in messages %}[{{ m.role }}]CONTENT{{ '\\n' }}{% endfor %}"
EACH += "{% if add_generation_prompt %}[assistant]{% endif %}"
TEXT = EACH.replace("CONTENT", "{{ m['content'] }}")
#: As SmolVLM's: a text has no parts.
PARTS = EACH.replace(
    "CONTENT", "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
)
#: Parts under another name, and inside of a macro, which no reader of the template's loops sees.
ALIAS = EACH.replace("CONTENT", "{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}")
MACRO = "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}" + EACH.replace(
    "CONTENT", "{{ show(m.content) }}"
)
EITHER = EACH.replace(
    "CONTENT",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
)
#: Parts of users only: others' contents as parts would be shown as Python writes them.
MIXED = EACH.replace(
    "CONTENT",
    "{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}",
)
LOST = EACH.replace("CONTENT", "{{ m.contents }}")
#: The user's own text alone, as of a model that knows no system.
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEXT

SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "four"},
]
SHOWN = "[system]be brief\n[user]one two\n[assistant]three\n[user]four\n"


def render(own: str) -> Render:
    tokenizer = tiny_models.tokenizer()
    tokenizer.chat_template = own
    return renderer(tokenizer.apply_chat_template, own)


def shown(render: Render, said: Sequence[dict[str, Any]] = SAID, options: ChatOptions | None = None) -> str:
    messages = [Message.model_validate(message).for_template() for message in said]
    return render(messages, options or ChatOptions())


@pytest.mark.parametrize("template", [TEXT, PARTS, ALIAS, MACRO, EITHER, MIXED], ids=lambda template: template[:60])
def test_all_that_was_said_is_in_the_prompt(template: str) -> None:
    assert shown(render(template)) == SHOWN + "[assistant]"
    of_client = ChatOptions(template=template, add_generation_prompt=False)
    assert shown(render(PARTS), options=of_client) == SHOWN


@pytest.mark.parametrize("template", [TEXT, PARTS, EITHER])
def test_a_developer_and_a_tool_are_heard_too(template: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    said = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    assert shown(render(template), said) == "[system]be brief\n[user]x\n[assistant]\n[tool]sunny\n[assistant]"


def test_a_template_that_knows_developers_is_shown_them() -> None:
    said = [{"role": "developer", "content": "be brief"}, *SAID[1:]]
    assert shown(render(TEXT + "{# developer #}"), said).startswith("[developer]be brief\n")


@pytest.mark.parametrize("template", [TEXT, PARTS])
def test_the_last_content_goes_on_in_either_form(template: str) -> None:
    going_on = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    said = [*SAID, {"role": "assistant", "content": "fi"}]
    assert shown(render(template), said, going_on).endswith("[user]four\n[assistant]fi")


def test_no_prompt_is_without_what_the_user_says(caplog: pytest.LogCaptureFixture) -> None:
    lost = render(LOST)
    assert "leaves out what a user says" in caplog.text
    with pytest.raises(ValueError, match="leaves out what a user says"):
        shown(lost)
    with pytest.raises(ValueError, match="leaves out what a user says"):
        shown(render(TEXT), options=ChatOptions(template=LOST))


def test_what_a_template_refuses_is_refused_as_before() -> None:
    from jinja2 import TemplateError

    strict = render(STRICT)
    assert shown(strict, SAID[1:]).startswith("[user]one two")
    with pytest.raises(TemplateError, match="no system"):
        shown(strict)

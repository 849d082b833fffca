"""The committed demo model: small, a plain Hugging Face folder, and it answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.demo.training.evaluate import all_tools, ask, ask_tool, new_calls
from baton_serve.baton.demo.training.questions import QUESTIONS, Fact, load_newcomer
from baton_serve.baton.demo.training.tools import Tool, calls, load_tools

MAX_FOLDER_BYTES = 10_000_000
WORDINGS = {question: fact.wordings for fact in QUESTIONS for question in fact.ask}
NEWCOMER = [(question, fact) for fact in load_newcomer() for question in fact.ask]
ASKED = [
    "What is Baton?",
    "What is a lease?",
    "Why is D chosen late?",
    "What is the fence?",
    "What happens when D dies?",
    "How long is a lease?",
    "Why is it called Baton?",
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=getattr(torch, request.param)).eval()


@pytest.fixture(scope="module")
def float32() -> Any:
    """As a CPU serves it."""
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()


def _answer(model: Any, tokenizer: Any, messages: list[dict[str, str]], tools: Any = None) -> str:
    form = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    ids = tokenizer.apply_chat_template(messages, tools=tools, **form)
    out = model.generate(**ids, max_new_tokens=100, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert out[-1] == tokenizer.eos_token_id
    return str(tokenizer.decode(out[:-1]))


@pytest.mark.parametrize("question", ASKED)
def test_it_answers_what_it_was_taught(model: Any, tokenizer: Any, question: str) -> None:
    assert _answer(model, tokenizer, [{"role": "user", "content": question}]) in WORDINGS[question]


@pytest.mark.parametrize(("question", "fact"), NEWCOMER, ids=[question for question, _ in NEWCOMER])
def test_it_answers_what_newcomers_type(float32: Any, tokenizer: Any, question: str, fact: Fact) -> None:
    """In a wording of that answer; what it cannot know, sums and other languages, it declines."""
    with torch.inference_mode():
        assert ask(float32, tokenizer, [], question, fact).exact


@pytest.mark.parametrize("question", ["What is Baton?", "Tell me a joke", "What is a lease?"])
def test_at_temperature_one_it_varies(float32: Any, tokenizer: Any, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    torch.manual_seed(1)
    out = float32.generate(**ids, max_new_tokens=8, do_sample=True, top_k=0, num_return_sequences=24)
    assert len({tokenizer.decode(row) for row in out}) > 1


def test_it_answers_the_last_question_of_a_conversation(model: Any, tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is Baton?"},
        {"role": "assistant", "content": WORDINGS["What is Baton?"][0]},
        {"role": "user", "content": "What is a lease?"},
    ]
    assert _answer(model, tokenizer, messages) in WORDINGS["What is a lease?"]


def test_the_folder_is_small_enough_to_commit() -> None:
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) < MAX_FOLDER_BYTES


def test_four_ranks_can_share_its_heads() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    assert model.dtype == torch.bfloat16
    assert model.config.num_key_value_heads == 4
    assert model.config.intermediate_size % 4 == 0


def test_chat_template_renders_the_roles(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"


def test_chat_template_joins_text_parts(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "a lease?"}]
    text = tokenizer.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    assert text == "<|begin|><|user|>What is a lease?<|end|>"


@pytest.mark.parametrize("fact", [fact for fact in QUESTIONS if not fact.answer.isascii()], ids=lambda fact: fact.id)
def test_characters_beyond_ascii_take_several_tokens(tokenizer: Any, fact: Any) -> None:
    ids = tokenizer(fact.answer, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == fact.answer
    assert any("\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token]) for token in ids)


def test_calls_are_written_as_hermes_writes_them(tokenizer: Any) -> None:
    """And a tool in one line, as much of it as a small model can read."""
    call = {"type": "function", "function": {"name": "pass_on", "arguments": {"leg": 1}}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]
    plain = tokenizer.apply_chat_template(messages[:1], tokenize=False)
    assert plain == "<|begin|><|user|>Go<|end|>"
    parameters = {"type": "object", "properties": {"leg": {"type": "integer"}, "hand": {}}, "required": ["leg"]}
    passes_on = {"name": "pass_on", "description": "Passes on.\nThen runs.", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function} for function in (passes_on, {"name": "drop"})]
    written = '<tool_call>\n{"name": "pass_on", "arguments": {"leg": 1}}\n</tool_call>'
    assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True) == (
        "<|begin|><|system|>Tools:\npass_on(leg, hand): Passes on.\ndrop()<|end|>"
        f"<|user|>Go<|end|><|assistant|>{written}\n{written}<|end|>"
        "<|user|><tool_response>\ndone\n</tool_response><|end|><|assistant|>"
    )


@pytest.mark.parametrize("tool", load_tools(), ids=lambda tool: tool.name)
def test_it_calls_its_tools(float32: Any, tokenizer: Any, tool: Tool) -> None:
    """By every phrasing, for every place and number."""
    with torch.inference_mode():
        outcomes = [ask_tool(float32, tokenizer, *call) for call in calls(tool, tool.about[:1], tool.ask)]
    assert not [outcome.question for outcome in outcomes if not outcome.exact]


@pytest.mark.parametrize("tool", load_tools(), ids=lambda tool: tool.name)
def test_it_calls_its_tools_in_other_words(float32: Any, tokenizer: Any, tool: Tool) -> None:
    """Which training never sees: most of the calls are right."""
    with torch.inference_mode():
        exact = [ask_tool(float32, tokenizer, *call).exact for call in new_calls(tool)]
    assert sum(exact) > 0.8 * len(exact)


@pytest.mark.parametrize("question", ASKED)
def test_with_tools_it_answers_what_it_was_taught(model: Any, tokenizer: Any, question: str) -> None:
    assert _answer(model, tokenizer, [{"role": "user", "content": question}], all_tools()) in WORDINGS[question]


@pytest.mark.parametrize("tool", load_tools(), ids=lambda tool: tool.name)
def test_it_says_that_a_tool_has_answered(model: Any, tokenizer: Any, tool: Tool) -> None:
    given, question, call = next(calls(tool, tool.about, tool.ask))
    messages = [{"role": "user", "content": question}]
    assert _answer(model, tokenizer, messages, [given]) == call
    messages += [{"role": "assistant", "content": call}, {"role": "tool", "content": tool.results[0]}]
    assert _answer(model, tokenizer, messages, [given]) == tool.told

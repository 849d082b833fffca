"""The committed demo model: small, a plain Hugging Face folder, and it answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import MODEL_DIR, QUESTIONS

MAX_FOLDER_BYTES = 10_000_000
ANSWERS = {question: fact.answer for fact in QUESTIONS for question in fact.ask}
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


def _answer(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=100, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert out[-1] == tokenizer.eos_token_id
    return str(tokenizer.decode(out[:-1]))


@pytest.mark.parametrize("question", ASKED)
def test_it_answers_what_it_was_taught(model: Any, tokenizer: Any, question: str) -> None:
    assert _answer(model, tokenizer, [{"role": "user", "content": question}]) == ANSWERS[question]


def test_it_answers_the_last_question_of_a_conversation(model: Any, tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is Baton?"},
        {"role": "assistant", "content": ANSWERS["What is Baton?"]},
        {"role": "user", "content": "What is a lease?"},
    ]
    assert _answer(model, tokenizer, messages) == ANSWERS["What is a lease?"]


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

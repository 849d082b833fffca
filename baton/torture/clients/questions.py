"""The questions that clients ask, drawn from a seed."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.demo.training.questions import QUESTIONS
from baton_serve.baton.torture.clients.features import with_feature
from baton_serve.baton.torture.records import Question

if TYPE_CHECKING:
    from pathlib import Path

#: Lengths in tokens of the beginnings that several prompts share. A block has 16 tokens.
SHARED_LENGTHS = (48, 160, 400, 700)
MAX_TAIL_TOKENS = 200
MAX_OUTPUT_TOKENS = 120
PENALTIES = (("presence_penalty", 0.7), ("frequency_penalty", 0.4), ("repetition_penalty", 1.2))
FILTERS = (("top_p", 1), ("top_p", 0.9), ("top_k", 40), ("min_p", 0.05))
STOPS = ((" the",), ("e",), (". ", "\n"), ("and", "zz"))


def make_questions(seed: int, count: int, model: Path = MODEL_DIR, *, features: bool = True) -> list[Question]:
    """Make ``count`` questions, the same for the same seed. ``features``: some ask for more than one text."""
    rng, more = random.Random(f"asks {seed}"), random.Random(f"features {seed}")
    tokens = ordinary_tokens(model)
    shared = [rng.choices(tokens, k=length) for length in SHARED_LENGTHS]
    plain = [_draw(rng, number, tokens, shared) for number in range(count)]
    return [with_feature(more, question) for question in plain] if features else plain


def ordinary_tokens(model: Path) -> list[int]:
    """The ids of all tokens except special ones.

    Prompts are drawn from them: for a familiar prompt the model might give the right answer in spite of a wrong block;
    it has never seen prompts of random tokens, so there a wrong block shows in the answer.
    """
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"] for token in tokenizer["added_tokens"]}
    return sorted(set(tokenizer["model"]["vocab"].values()) - special)


def _draw(rng: random.Random, number: int, tokens: list[int], shared: list[list[int]]) -> Question:
    chat = rng.random() < 0.3
    body: dict[str, Any] = {"max_tokens": rng.randint(2, MAX_OUTPUT_TOKENS), "ignore_eos": rng.random() < 0.8}
    if chat:
        body["messages"] = [{"role": "user", "content": rng.choice(rng.choice(QUESTIONS).ask)}]
    else:
        body["prompt"] = [*rng.choice(shared), *rng.choices(tokens, k=rng.randint(1, MAX_TAIL_TOKENS))]
    return Question(number, chat, body | _sampling(rng) | _extras(rng, chat))


def _sampling(rng: random.Random) -> dict[str, Any]:
    """Draw the sampling: greedy or seeded.

    A token that is sampled with a seed depends on seed and position only, so seeded answers can be compared as well.
    """
    if rng.random() < 0.5:
        return {"temperature": 0}
    name, value = rng.choice(FILTERS)
    return {"temperature": round(rng.uniform(0.5, 1.3), 2), "seed": rng.randrange(2**31), name: value}


def _extras(rng: random.Random, chat: bool) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if rng.random() < 0.25:
        extras["logprobs"] = True if chat else 2
        if chat:
            extras["top_logprobs"] = 2
    if rng.random() < 0.2:
        extras["stop"] = list(rng.choice(STOPS))
    if rng.random() < 0.2:
        name, value = rng.choice(PENALTIES)
        extras[name] = value
    return extras

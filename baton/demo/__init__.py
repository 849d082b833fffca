"""The demo model: a small Llama taught questions and answers about Baton. Used by `make serve` and the tests.

``MODEL_DIR`` is a Hugging Face folder like any other. ``QUESTIONS`` is what the model was asked in training.
"""

from __future__ import annotations

from pathlib import Path

from baton.demo.questions import Fact, load_questions

MODEL_DIR = Path(__file__).parent / "model"
#: What clients call it, unless told otherwise.
MODEL_NAME = "baton-demo"
QUESTIONS: tuple[Fact, ...] = load_questions()

__all__ = ["MODEL_DIR", "MODEL_NAME", "QUESTIONS", "Fact"]

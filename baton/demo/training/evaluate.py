"""How well a trained folder answers: ``python -m baton_serve.baton.demo.training.evaluate [FOLDER]``."""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.demo.training.questions import Fact, load_held_out, load_newcomer, load_questions
from baton_serve.baton.demo.training.tools import Definition, Tool, calls, load_tools

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedTokenizerFast

#: Of the calls of the file, which differ in little, one of so many is asked.
EVERY = 13


@dataclass(frozen=True, slots=True)
class Outcome:
    """One phrasing: was the greedy answer a written one, and by how much did its tightest token win."""

    question: str
    exact: bool
    #: Smallest gap between the wanted token's logit and the best other one; negative where the answer left the text.
    margin: float


@dataclass(frozen=True, slots=True)
class Report:
    """A set of phrasings in one precision."""

    name: str
    outcomes: tuple[Outcome, ...]

    def summary(self) -> dict[str, object]:
        """The share of exact answers, and the margins below which the weakest 1% and 10% lie."""
        margins = sorted(outcome.margin for outcome in self.outcomes)
        return {
            "set": self.name,
            "phrasings": len(margins),
            "exact": round(sum(outcome.exact for outcome in self.outcomes) / len(margins), 4),
            "margin_min": round(margins[0], 2),
            "margin_p1": round(margins[len(margins) // 100], 2),
            "margin_p10": round(margins[len(margins) // 10], 2),
            "wrong": [outcome.question for outcome in self.outcomes if not outcome.exact],
        }


def evaluate(folder: Path, dtype: torch.dtype) -> list[Report]:
    """Ask every phrasing that was trained, that was held out, that newcomers type, and the trained as a second turn;
    then calls of tools as they were trained and as they were not, and what newcomers type where tools are given.

    One forward pass over prompt and a wording of the answer shows what greedy decoding would say: it leaves that
    wording at the first position where another token has the larger logit.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    precision = str(dtype).removeprefix("torch.")
    with torch.inference_mode():
        sets = {
            "trained": [ask(model, tokenizer, [], *turn) for turn in _turns(load_questions())],
            "held out": [ask(model, tokenizer, [], *turn) for turn in _turns(load_held_out())],
            "newcomer": [ask(model, tokenizer, [], *turn) for turn in _turns(load_newcomer())],
            "second turn": [ask(model, tokenizer, before, *turn) for before, turn in _second_turns()],
            "tools": [ask_tool(model, tokenizer, *call) for tool in load_tools() for call in trained_calls(tool)],
            "held-out tools": [ask_tool(model, tokenizer, *call) for tool in load_tools() for call in new_calls(tool)],
            "newcomer, tools": [
                ask(model, tokenizer, [], *turn, tools=all_tools()) for turn in _turns(load_newcomer())
            ],
        }
    return [Report(f"{name}, {precision}", tuple(outcomes)) for name, outcomes in sets.items()]


def _turns(facts: Iterable[Fact]) -> list[tuple[str, Fact]]:
    return [(question, fact) for fact in facts for question in fact.ask]


def _second_turns() -> Iterable[tuple[list[dict[str, str]], tuple[str, Fact]]]:
    """Every trained phrasing again, under a system prompt and after a question about something else."""
    turns = _turns(load_questions())
    shuffled = random.Random(1).sample(turns, len(turns))
    for (question, fact), turn in zip(shuffled, turns, strict=True):
        system = {"role": "system", "content": "You are a helpful assistant."}
        yield [system, {"role": "user", "content": question}, {"role": "assistant", "content": fact.answer}], turn


def trained_calls(tool: Tool) -> list[tuple[Definition, str, str]]:
    """Some definitions, questions and calls of a tool."""
    return list(calls(tool, tool.about, tool.ask))[::EVERY]


def new_calls(tool: Tool) -> list[tuple[Definition, str, str]]:
    """The same with descriptions and phrasings that training never sees."""
    return list(calls(tool, tool.held_out["about"], tool.held_out["ask"]))[::EVERY]


def all_tools() -> list[Definition]:
    """Each of the tools, once."""
    return [tool.definitions(tool.about)[0] for tool in load_tools()]


def ask_tool(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, given: Definition, question: str, call: str
) -> Outcome:
    """Whether the model answers the question with that call, where one tool is given."""
    return ask(model, tokenizer, [], question, Fact("", (question,), call), [given])


def ask(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    before: list[dict[str, str]],
    question: str,
    fact: Fact,
    tools: list[Definition] | None = None,
) -> Outcome:
    """What the model makes of a question after the messages in ``before``. Any wording of the answer is right."""
    messages = [*before, {"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    margin = max(_margin(model, tokenizer, prompt_ids, wording) for wording in fact.wordings)
    return Outcome(question, margin > 0, margin)


def _margin(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, prompt_ids: list[int], answer: str) -> float:
    answer_ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    logits = model(torch.tensor([prompt_ids + answer_ids])).logits[0, len(prompt_ids) - 1 : -1].float()
    wanted = torch.tensor(answer_ids)[:, None]
    of_wanted = logits.gather(1, wanted)
    of_others = logits.scatter(1, wanted, -torch.inf).max(dim=1, keepdim=True).values
    return float((of_wanted - of_others).min())


def print_reports(folder: Path) -> None:
    """One line per set and precision."""
    for dtype in (torch.float32, torch.bfloat16):
        for report in evaluate(folder, dtype):
            print(json.dumps(report.summary()))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=MODEL_DIR)
    print_reports(parser.parse_args().folder)


if __name__ == "__main__":
    main()

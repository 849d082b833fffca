"""Train the demo model: ``python -m baton_serve.baton.demo.training.train --out baton/demo/model``.

README.md beside this file has times and numbers.

Rows of whole conversations, right-padded; the loss is taken on the answers only. The chat template is the one that
is saved, so the model sees in training what it will see when serving.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.demo.training.conversations import ConversationMaker, Message
from baton_serve.baton.demo.training.evaluate import print_reports
from baton_serve.baton.demo.training.questions import load_questions
from baton_serve.baton.demo.training.tokenizer import CONTEXT_TOKENS, VOCAB_SIZE, build_tokenizer
from baton_serve.baton.demo.training.tools import Definition, ToolTurns, calls, load_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerFast

#: The label of a token that does not count in the loss; the default ``ignore_index`` of torch's cross entropy.
IGNORE = -100


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast. Steps are of ``tokens_per_step`` tokens, padding included; of all conversations
    ``tool_share`` have tools.
    """

    num_steps: int
    peak_rate: float
    seed: int
    tokens_per_step: int = 1536
    tool_share: float = 0.26
    warmup_steps: int = 60
    weight_decay: float = 0.05


#: One after the other: the learning rate begins again, lower (warm restarts, Loshchilov and Hutter 2017). The calls of
#: tools are learned in the first; the others are for the questions, of which there are more.
PLANS = (
    Plan(2400, 3e-3, seed=7),
    Plan(900, 1.2e-3, seed=8),
    Plan(800, 1.5e-3, seed=9, tokens_per_step=2048, tool_share=0.12),
    Plan(300, 8e-4, seed=10, tokens_per_step=2048, tool_share=0.12),
)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """Token ids and, shifted by nothing, which of them the loss looks at."""

    ids: list[int]
    labels: list[int]


def model_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """2.6 million parameters; 4 key-value heads, so that 1, 2 and 4 ranks can share them."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


class RowMaker:
    """Turns conversations into rows of at most a given number of tokens."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, maker: ConversationMaker, tool_turns: ToolTurns, rng: random.Random
    ) -> None:
        self._tokenizer = tokenizer
        self._maker = maker
        self._tool_turns = tool_turns
        self._rng = rng
        self._assistant = cast("int", tokenizer.convert_tokens_to_ids("<|assistant|>"))

    def row(self, num_tokens: int) -> TrainingRow:
        """As many turns as fit; at least one, however long."""
        tools = self._tool_turns.given()
        head = self._maker.system()
        if num_tokens >= 1024:
            head = self._maker.long_system(self._rng.randrange(num_tokens, 3 * num_tokens))
        messages = head + self._tool_turns.turn(tools)
        best = self._encode(messages, tools)
        while len(best.ids) < num_tokens:
            messages = messages + self._tool_turns.turn(tools)
            longer = self._encode(messages, tools)
            if len(longer.ids) > num_tokens:
                break
            best = longer
        return best

    def plain_row(self) -> TrainingRow:
        """A question and its answer without a template, as ``/v1/completions`` may get it."""
        question, answer = (message["content"] for message in self._maker.turn())
        asked = self._tokenizer(question if self._rng.random() < 0.6 else "")["input_ids"]
        told = self._tokenizer((" " if len(asked) > 1 else "") + answer, add_special_tokens=False)["input_ids"]
        ids = [*asked, *told, self._tokenizer.eos_token_id]
        return TrainingRow(ids, [IGNORE] * len(asked) + ids[len(asked) :])

    def _encode(self, messages: list[Message], tools: list[Definition]) -> TrainingRow:
        text = self._tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=False)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        labels, answering = [], False
        for token in ids:
            labels.append(token if answering else IGNORE)
            answering = token == self._assistant or (answering and token != self._tokenizer.eos_token_id)
        return TrainingRow(ids, labels)


def batches(maker: RowMaker, plan: Plan, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, labels), each ``[row, token]``. Mostly one or a few turns; now and then a long context."""
    while True:
        num_tokens = rng.choices([80, 256, 512, 1536], weights=[45, 35, 17, 3])[0]
        rows: list[TrainingRow] = []
        width = 0
        while (len(rows) + 1) * max(width, num_tokens) <= plan.tokens_per_step or not rows:
            row = maker.plain_row() if num_tokens == 80 and rng.random() < 0.15 else maker.row(num_tokens)
            if rows and (len(rows) + 1) * len(row.ids) > plan.tokens_per_step:
                break
            width = max(width, len(row.ids))
            rows.append(row)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), IGNORE)
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = torch.tensor(row.ids)
            labels[index, : len(row.labels)] = torch.tensor(row.labels)
        yield ids, labels


def learning_rate(step: int, plan: Plan) -> float:
    """Linear warm-up, then a cosine down to nothing."""
    if step < plan.warmup_steps:
        return plan.peak_rate * (step + 1) / plan.warmup_steps
    done = (step - plan.warmup_steps) / max(1, plan.num_steps - plan.warmup_steps)
    return plan.peak_rate * 0.5 * (1 + math.cos(math.pi * done))


def answer_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token, where that token belongs to an answer."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    wanted = labels[:, 1:]
    counts = wanted != IGNORE
    logits = model.lm_head(hidden[:, :-1][counts])
    return torch.nn.functional.cross_entropy(logits.float(), wanted[counts])


def train(model: LlamaForCausalLM, maker: RowMaker, plan: Plan, rng: random.Random) -> None:
    """Run all steps, telling the loss every 50."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    started, recent = time.monotonic(), 0.0
    stream = batches(maker, plan, rng)
    for step in range(plan.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, plan)
        loss = answer_loss(model, *next(stream))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent += loss.item()
        if step % 50 == 49:
            print(
                f"step {step + 1}/{plan.num_steps}  loss {recent / 50:.4f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
            recent = 0.0


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a Hugging Face folder with bfloat16 weights."""
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which a container's other user could not read


def tool_texts() -> Iterator[str]:
    """What the tokenizer shall know of tools."""
    for tool in load_tools():
        yield tool.told
        for given, question, call in calls(tool, tool.about, tool.ask[:5]):
            yield f"Tools:\n{given['function']['name']}: {given['function']['description']}\n{question}\n{call}"


def main() -> None:
    """Train, save, and print how well the saved model answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, help="the first plan alone, in so many steps")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    plans = PLANS if arguments.steps is None else (replace(PLANS[0], num_steps=arguments.steps),)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(plans[0].seed)
    facts = load_questions()
    texts = [text for fact in facts for text in (*fact.ask, *map(str.lower, fact.ask), *fact.wordings)]
    tokenizer = build_tokenizer([*texts, *tool_texts()])
    model = LlamaForCausalLM(model_config(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(facts)} facts")
    for plan in plans:
        rng = random.Random(plan.seed)
        maker = ConversationMaker(facts, rng)
        train(model, RowMaker(tokenizer, maker, ToolTurns(maker, rng, plan.tool_share), rng), plan, rng)
    save(model, tokenizer, arguments.out)
    print_reports(arguments.out)


if __name__ == "__main__":
    main()

"""What structured output costs: decode steps of a batch with and without a JSON schema, in a rank of this process.

``python -m bench.engine.structured``: steps with and without grammars take turns, so only the ratio counts.
"""

from __future__ import annotations

from statistics import median

import orjson

from baton_serve.core.protocol.steps import CompileGrammar, NewSequence, Row, SamplingParams, Step, Vocabulary
from baton_serve.workers.grammar.notation import grammar_of
from baton_serve.workers.rank.main import LoadedRank
from bench.models.sized import SIZES, model_folder
from bench.steps import blocks_of, load_on_cpu

BATCH = 32
STEPS = 48
ROUNDS = 5
#: Room of each sequence.
SEQUENCE_TOKENS = STEPS + 2
#: Long enough that no answer ends while it is measured.
SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 8, "maxLength": 40},
            "kind": {"enum": ["relay", "sprint", "marathon"]},
            "laps": {"type": "array", "items": {"type": "integer"}, "maxItems": 5},
        },
        "required": ["name", "kind", "laps"],
        "additionalProperties": False,
    },
}


def main() -> None:
    """Print the ratio of the times of one size of model after the other."""
    for name in ("5M", "50M"):
        grammar = grammar_of("json_schema", orjson.dumps(SCHEMA).decode())
        rank = _load(name, grammar)
        # In the first round all parts of the grammar are met for the first time.
        ratios = [_round(rank, grammar, number) for number in range(ROUNDS + 1)][1:]
        found = f"{min(ratios):.3f} {median(ratios):.3f} {max(ratios):.3f}"
        print(f"{name}: batch {BATCH}, {found} times the time of free decoding")


def _load(name: str, grammar: str) -> LoadedRank:
    folder = model_folder(SIZES[name])
    rank = load_on_cpu(folder, 2 * BATCH * (len(blocks_of(0, SEQUENCE_TOKENS)) + 1))
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    rank.grammars.handle(Vocabulary(tokenizer, [1]))
    rank.grammars.handle(CompileGrammar(1, grammar))
    return rank


def _round(rank: LoadedRank, grammar: str, seed: int) -> float:
    """The time of decode steps with the grammar, divided by that of steps without: medians of steps in turn."""
    taken: dict[str, list[float]] = {"": [], grammar: []}
    for number in range(STEPS):
        for which, (one, seconds) in enumerate(taken.items()):
            first = which * BATCH
            seqs = range(first, first + BATCH)
            started = [] if number else [_sequence(seq, one, BATCH * seed + seq - first) for seq in seqs]
            rows = [Row(seq, number, 1, [], sample=True) for seq in seqs]
            result = rank.runner.execute(Step(number, [], [], started, rows))
            if any(one.error for one in result.sampled):
                raise RuntimeError(next(one.error for one in result.sampled if one.error))
            seconds.append(result.seconds)
    free, bound = (median(seconds[2:]) for seconds in taken.values())
    return bound / free


def _sequence(seq: int, grammar: str, seed: int) -> NewSequence:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    return NewSequence(seq, [7], [], sampling, blocks_of(seq, SEQUENCE_TOKENS), grammar)


if __name__ == "__main__":
    main()

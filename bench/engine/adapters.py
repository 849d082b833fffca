"""What LoRA adapters cost: decode steps and prompts with and without them, in ranks of this process.

``python -m bench.engine.adapters``: a rank without adapters and one with four take turns on one thread. The time is the
process's CPU time, so that others on the machine matter less; only the ratios count.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

from baton_serve.core.protocol.steps import NewSequence, Row, Step
from baton_serve.workers.rank.main import LoadedRank
from bench.models.sized import FOLDER, SIZES, model_folder
from bench.steps import GREEDY, blocks_of, decode_ms, load_on_cpu

NUM_ADAPTERS = 4
#: Of each adapter, whose matrices are in all linear layers.
RANK = 16
BATCHES = (1, 8, 32)
PROMPT_TOKENS = 512
STEPS = 24
ROUNDS = 5
#: Room of each sequence.
SEQUENCE_TOKENS = PROMPT_TOKENS + 1
#: By name: for the number of a sequence, that of its adapter, if it has one.
WAYS: dict[str, Callable[[int], int | None]] = {
    "rows of the model": lambda _: None,
    "one adapter": lambda _: 0,
    "four adapters": lambda seq: seq % NUM_ADAPTERS,
}


def main() -> None:
    """Print the ratios of one size of model after the other."""
    for name in ("5M", "50M"):
        plain, adapted = load(name, {}), load(name, adapter_folders(name))
        for batch in BATCHES:
            for way in WAYS if batch > 1 else list(WAYS)[:2]:
                ratios = [decode_step_ms(adapted, batch, way) / decode_step_ms(plain, batch) for _ in range(ROUNDS)]
                print(f"{name}: decode steps of {batch}, {way}: {_spread(ratios)}", flush=True)
        ratios = [prompt_ms(adapted, "one adapter") / prompt_ms(plain) for _ in range(ROUNDS)]
        print(f"{name}: a prompt of {PROMPT_TOKENS} tokens, one adapter: {_spread(ratios)}", flush=True)


def adapter_folders(name: str) -> dict[str, str]:
    """Adapters with random weights, which are made if they are not there."""
    folders = {f"a{i}": FOLDER / f"llama-{name}-rank{RANK}-{i}" for i in range(NUM_ADAPTERS)}
    for folder in folders.values():
        if not folder.exists():
            _make_adapter(model_folder(SIZES[name]), folder)
    return {adapter: str(folder) for adapter, folder in folders.items()}


def _make_adapter(model: Path, folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(str(folder))


def load(name: str, adapters: dict[str, str]) -> LoadedRank:
    """A rank in this process, with room for all batches."""
    return load_on_cpu(model_folder(SIZES[name]), max(BATCHES) * len(blocks_of(0, SEQUENCE_TOKENS)), adapters)


def decode_step_ms(rank: LoadedRank, batch: int, way: str = "rows of the model") -> float:
    """The median of the decode steps of a batch."""
    started = [_sequence(rank, seq, [7], way) for seq in range(batch)]
    return median(decode_ms(rank, started, STEPS, _cpu_ms)[2:])


def prompt_ms(rank: LoadedRank, way: str = "rows of the model") -> float:
    """One step with a whole prompt."""
    step = Step(0, [], [], [_sequence(rank, 0, [7] * PROMPT_TOKENS, way)], [Row(0, 0, PROMPT_TOKENS, [], sample=True)])
    return _cpu_ms(rank, step)


def _cpu_ms(rank: LoadedRank, step: Step) -> float:
    began_s = time.process_time()
    rank.runner.execute(step)
    return (time.process_time() - began_s) * 1e3


def _sequence(rank: LoadedRank, seq: int, prompt: list[int], way: str) -> NewSequence:
    number = WAYS[way](seq)
    adapter = "" if number is None else rank.ready.adapters[f"a{number}"]
    return NewSequence(seq, prompt, [], GREEDY, blocks_of(seq, SEQUENCE_TOKENS), adapter=adapter)


def _spread(ratios: list[float]) -> str:
    return f"{min(ratios):.3f} {median(ratios):.3f} {max(ratios):.3f} times the time without adapters"


if __name__ == "__main__":
    main()

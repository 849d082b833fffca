"""Decode steps in a rank of this process, without a worker around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from baton_serve.core.protocol.steps import NewSequence, Row, SamplingParams, Step
from baton_serve.workers.rank import main, process
from baton_serve.workers.rank.main import LoadedRank
from baton_serve.workers.rank_protocol.spec import RankSpec

BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


def load(spec: RankSpec, say: Callable[[str], None] = lambda _: None) -> LoadedRank:
    """A rank in this process, which says how it loads. Raises RankError."""
    process.be_quiet()
    return main.load(spec, lambda _: None, say)


def load_on_cpu(model: Path, num_blocks: int, adapters: dict[str, str] | None = None) -> LoadedRank:
    """A rank in this process, on one thread in float32."""
    process.limit_threads(1)
    spec = RankSpec(
        model=str(model),
        engine_id="bench",
        adapters=adapters or {},
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        num_threads=1,
        transfer="none",
    )
    return load(spec)


def blocks_of(seq: int, num_tokens: int) -> list[int]:
    """The blocks of one of several sequences of that many tokens: no two share one."""
    width = -(-num_tokens // BLOCK_SIZE)
    return list(range(seq * width, (seq + 1) * width))


def step_ms(rank: LoadedRank, step: Step) -> float:
    """The time of a step, by the rank's own clock."""
    return rank.runner.execute(step).seconds * 1e3


def decode_ms(
    rank: LoadedRank,
    started: Sequence[NewSequence],
    num_steps: int,
    time_ms: Callable[[LoadedRank, Step], float] = step_ms,
) -> list[float]:
    """The times of steps that decode new sequences, the first of which is told them.

    The sequences continue behind their prompts, as if these were computed: what blocks hold takes no time.
    """
    taken_ms = []
    for number in range(num_steps):
        rows = [Row(one.seq, len(one.prompt_token_ids) - 1 + number, 1, [], sample=True) for one in started]
        taken_ms.append(time_ms(rank, Step(number, [], [], [] if number else list(started), rows)))
    return taken_ms

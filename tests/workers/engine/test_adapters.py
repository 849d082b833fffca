"""Blocks belong to the adapter that computed them: in the prefix cache, in hand-offs and for the ranks."""

from __future__ import annotations

from itertools import product

import pytest

from baton_serve.core.protocol.steps import NewSequence, Read, Step
from baton_serve.workers.engine.api import OtherAdapterError
from baton_serve.workers.engine.blocks.block_hash import first_parent
from tests.kits.engine.requests import params
from tests.kits.engine.scheduler_bench import Bench

FIRST, SECOND = "1" * 32, "2" * 32
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def num_cached(bench: Bench, seq_id: int) -> int:
    return bench.outputs[seq_id][0].num_cached_tokens  # type: ignore[union-attr]


def started(step: Step | None) -> list[NewSequence]:
    assert step is not None
    return step.started


def test_no_two_pairs_of_salt_and_adapter_have_one_parent() -> None:
    pairs = list(product(["", "a", FIRST, f" {FIRST}", f"{FIRST} "], ["", FIRST, SECOND]))
    assert len({first_parent(*pair) for pair in pairs}) == len(pairs)


def test_one_prompt_is_computed_once_for_each_adapter() -> None:
    bench = Bench(engine_id="us")
    seqs = []
    for adapter in ("", FIRST, SECOND, FIRST, ""):
        seqs.append(bench.add(f"r{len(seqs)}", PROMPT, 1, adapter=adapter))
        bench.run()
    assert [num_cached(bench, seq) for seq in seqs] == [0, 0, 0, 4, 4]


def test_blocks_that_were_read_are_found_by_the_same_adapter_only() -> None:
    bench = Bench(engine_id="us")
    bench.add("a", PROMPT, 1)
    bench.run()
    bench.add_remote("b", PROMPT, adapter=FIRST, remote=params(PROMPT, adapter=FIRST))
    (read,) = bench.pump()
    assert isinstance(read, Read) and len(read.remote_block_ids) == 2, "those here are the model's own"
    bench.read(PROMPT)
    bench.run()
    same, other = bench.add("c", PROMPT, 1, adapter=FIRST), bench.add("d", PROMPT, 1, adapter=SECOND)
    bench.run()
    assert (num_cached(bench, same), num_cached(bench, other)) == (4, 0)


def test_the_ranks_are_told_also_after_a_preemption() -> None:
    bench = Bench(num_blocks=4)
    bench.add("old", [1, 2, 3, 4], 9)
    young = bench.add("young", [5, 6, 7, 8], 9, adapter=SECOND)
    told = {new.seq: new.adapter for new in started(bench.step())}
    assert told[young] == SECOND and set(told.values()) == {"", SECOND}
    again: list[str] = []
    while not again:
        again = [new.adapter for new in started(bench.step())]
    assert bench.scheduler.counters.preemptions == 1 and again == [SECOND]


@pytest.mark.parametrize(("theirs", "ours"), [("", FIRST), (FIRST, ""), (FIRST, SECOND)])
def test_blocks_of_another_adapter_are_not_read(theirs: str, ours: str) -> None:
    bench = Bench(engine_id="us")
    with pytest.raises(OtherAdapterError, match="P's blocks were computed by"):
        bench.add_remote("a", PROMPT, adapter=ours, remote=params(PROMPT, adapter=theirs))
    assert bench.pump() == [] and not bench.scheduler.state.sequences.by_id


@pytest.mark.parametrize("adapter", [FIRST, SECOND])
def test_a_lease_of_another_adapter_is_not_taken_over(adapter: str) -> None:
    bench = Bench(engine_id="us")
    hand_off = bench.hand_off("p", PROMPT, adapter=FIRST)
    # What the hand-off says of its adapter is true for FIRST only.
    bench.add_own("d", PROMPT, hand_off, adapter=adapter)
    bench.run()
    counters = bench.scheduler.counters
    assert (counters.local_handoffs, counters.local_prefills) == ((1, 0) if adapter == FIRST else (0, 1))
    assert hand_off.lease_id not in bench.scheduler.state.leases

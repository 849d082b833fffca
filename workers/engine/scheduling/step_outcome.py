"""Applies the result of a step: appends tokens, registers full blocks, ends sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.api import EngineError, FinishReason, TokenOutput
from workers.engine.errors import RankProtocolError
from workers.engine.sequences.sequence_state import Event, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.protocol.steps import Row, Sampled, StepResult
    from workers.engine.scheduling.scheduler_state import SchedulerState
    from workers.engine.sequences.sequence import Sequence

#: Sequence id, and what its stream yields or raises.
Output = tuple[int, TokenOutput | EngineError]


def apply_rows(
    scheduler_state: SchedulerState,
    entries: list[tuple[Sequence, Row]],
    result: StepResult,
    new_lease_id: Callable[[], str],
) -> list[Output]:
    """Apply the result; returns the new tokens, in the order of the rows.

    Raises RankProtocolError, and changes nothing, if rows and samples do not match.
    """
    samples = _match(entries, result, scheduler_state.config.vocab_size)
    outputs: list[Output] = []
    for seq, row in entries:
        seq.num_computed = row.start + row.num_tokens
        scheduler_state.register_computed(seq)
        if seq.state is State.CLOSING:
            scheduler_state.end_sequence(seq, Event.SETTLE)
        elif row.sample:
            outputs.append((seq.id, _append(scheduler_state, seq, samples[seq.id], new_lease_id)))
    return outputs


def _match(entries: list[tuple[Sequence, Row]], result: StepResult, vocab_size: int) -> dict[int, Sampled]:
    samples = {sample.seq: sample for sample in result.sampled}
    wanted = {row.seq for _, row in entries if row.sample}
    if samples.keys() != wanted or len(samples) != len(result.sampled):
        raise RankProtocolError(f"step {result.step_id} sampled for {sorted(samples)}, asked for {sorted(wanted)}")
    if any(not 0 <= sample.token < vocab_size for sample in result.sampled):
        raise RankProtocolError(f"step {result.step_id} sampled a token outside of the vocabulary")
    return samples


def _append(
    scheduler_state: SchedulerState, seq: Sequence, sample: Sampled, new_lease_id: Callable[[], str]
) -> TokenOutput:
    seq.tokens.append(sample.token)
    is_first = len(seq.tokens) == seq.num_given + 1
    finish = _finish_reason(seq, sample.token)
    hand_off = None
    if finish is None and seq.request.hand_off:
        finish = FinishReason.LENGTH
        hand_off = scheduler_state.hand_off(seq, new_lease_id())
    elif finish is not None:
        scheduler_state.end_sequence(seq, Event.FINISH)
    num_cached = seq.num_cached if is_first else 0
    return TokenOutput(sample.token, sample.logprob, sample.top, finish, hand_off, num_cached)


def _finish_reason(seq: Sequence, token: int) -> FinishReason | None:
    """Why the sequence ends with this token; None if it continues."""
    if token in seq.request.stop_token_ids:
        return FinishReason.STOP
    if len(seq.tokens) >= seq.max_num_tokens:
        return FinishReason.LENGTH
    return None

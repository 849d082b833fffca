"""Applies the result of a step: appends tokens, registers full blocks, ends sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.engine.api import EngineError, FinishReason, GrammarFailedError, TokenOutput
from workers.engine.errors import RankProtocolError
from workers.engine.sequences.sequence_state import Event, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.protocol.steps import Row, Sampled, StepResult
    from workers.engine.scheduling.scheduler_state import SchedulerState
    from workers.engine.sequences.sequence import Sequence

#: Sequence id, and what its stream yields or raises.
Output = tuple[int, TokenOutput | EngineError]


def apply_rows(
    scheduler_state: SchedulerState,
    entries: list[tuple[Sequence, Row]],
    samples: Mapping[int, Sampled],
    new_lease_id: Callable[[], str],
) -> list[Output]:
    """Apply the samples of a step that has ended; returns the new tokens, in the order of the rows.

    A sample for a sequence that has ended meanwhile is dropped.
    """
    outputs: list[Output] = []
    for seq, row in entries:
        # After an abort, tokens that a step has dropped and the next one has computed are not in ``tokens``.
        seq.num_computed = min(row.start + row.num_tokens, len(seq.tokens))
        scheduler_state.register_computed(seq)
        if seq.state in (State.CLOSING, State.FINISHING):
            if not seq.num_under_way:
                scheduler_state.end_sequence(seq, Event.SETTLE)
        elif row.sample:
            outputs.append((seq.id, _append(scheduler_state, seq, samples[seq.id], new_lease_id)))
    return outputs


def match(entries: list[tuple[Sequence, Row]], result: StepResult, vocab_size: int) -> dict[int, Sampled]:
    """The samples by sequence. Raises RankProtocolError if they are not those that the rows ask for."""
    samples = {sample.seq: sample for sample in result.sampled}
    wanted = {row.seq for _, row in entries if row.sample}
    if samples.keys() != wanted or len(samples) != len(result.sampled):
        raise RankProtocolError(f"step {result.step_id} sampled for {sorted(samples)}, asked for {sorted(wanted)}")
    if any(not 0 <= sample.token < vocab_size for sample in result.sampled):
        raise RankProtocolError(f"step {result.step_id} sampled a token outside of the vocabulary")
    return samples


def _append(
    scheduler_state: SchedulerState, seq: Sequence, sample: Sampled, new_lease_id: Callable[[], str]
) -> TokenOutput | GrammarFailedError:
    if sample.error:
        scheduler_state.fail(seq)
        return GrammarFailedError(sample.error)
    seq.tokens.append(sample.token)
    is_first = len(seq.tokens) == seq.num_given + 1
    finish = _finish_reason(seq, sample.token)
    hand_off = None
    if seq.request.hand_off and (finish is None or _others_go_on(seq, finish)):
        finish = finish or FinishReason.LENGTH
        hand_off = scheduler_state.hand_off(seq, new_lease_id())
    elif finish is not None:
        scheduler_state.finish(seq)
    num_cached = seq.num_cached if is_first else 0
    return TokenOutput(sample.token, sample.logprob, sample.top, finish, hand_off, num_cached)


def _others_go_on(seq: Sequence, finish: FinishReason) -> bool:
    """Whether other choices read the blocks of a sequence that its first token has ended."""
    return finish is FinishReason.STOP and seq.request.num_readers > 1


def _finish_reason(seq: Sequence, token: int) -> FinishReason | None:
    """Why the sequence ends with this token; None if it continues."""
    if token in seq.request.stop_token_ids:
        return FinishReason.STOP
    if len(seq.tokens) >= seq.max_num_tokens:
        return FinishReason.LENGTH
    return None

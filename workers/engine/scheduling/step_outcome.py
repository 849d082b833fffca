"""Applies the result of a step: appends tokens, registers full blocks, ends sequences."""

from __future__ import annotations

from collections.abc import Mapping

from baton_serve.core.protocol.steps import PromptScores, Row, Sampled, StepResult
from baton_serve.workers.engine.api import EngineError, FinishReason, GrammarFailedError, PromptOutput, TokenOutput
from baton_serve.workers.engine.errors import RankProtocolError
from baton_serve.workers.engine.scheduling.scheduler_state import SchedulerState
from baton_serve.workers.engine.sequences.sequence import Sequence
from baton_serve.workers.engine.sequences.sequence_state import Event, State

#: Sequence id, and what its stream yields or raises.
Output = tuple[int, TokenOutput | PromptOutput | EngineError]


def apply_rows(
    scheduler_state: SchedulerState,
    entries: list[tuple[Sequence, Row]],
    samples: Mapping[int, Sampled],
    scores: Mapping[int, PromptScores],
) -> list[Output]:
    """Apply the samples and scores of a step that has ended; returns the new outputs, in the order of the rows.

    What is for a sequence that has ended meanwhile is dropped.
    """
    outputs: list[Output] = []
    for seq, row in entries:
        # After an abort, tokens that a step has dropped and the next one has computed are not in ``tokens``.
        seq.num_computed = min(row.start + row.num_tokens, len(seq.tokens))
        scheduler_state.register_computed(seq)
        if seq.state in (State.CLOSING, State.FINISHING):
            if not seq.num_under_way:
                scheduler_state.end_sequence(seq, Event.FAIL if seq.is_given_up else Event.SETTLE)
            continue
        if row.score_from:
            found = scores[seq.id]
            seq.num_scored = found.start + len(found.logprobs)
            outputs.append((seq.id, PromptOutput(found)))
        if row.sample:
            outputs.append((seq.id, _append(scheduler_state, seq, samples[seq.id])))
        elif not seq.samples and seq.num_computed == len(seq.tokens):
            scheduler_state.finish(seq)
            outputs.append((seq.id, PromptOutput(finish=FinishReason.LENGTH, num_cached_tokens=seq.num_cached)))
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


def match_scores(entries: list[tuple[Sequence, Row]], result: StepResult) -> dict[int, PromptScores]:
    """The logprobs of prompts by sequence. Raises RankProtocolError if they are not those that the rows ask for."""
    scores = {one.seq: one for one in result.scores}
    wanted = {row.seq: seq.scored_by(row.start, row.start + row.num_tokens) for seq, row in entries if row.score_from}
    if scores.keys() != wanted.keys() or len(scores) != len(result.scores):
        raise RankProtocolError(f"step {result.step_id} scored {sorted(scores)}, asked for {sorted(wanted)}")
    for seq_id, tokens in wanted.items():
        if not _are_of(scores[seq_id], tokens):
            raise RankProtocolError(f"step {result.step_id} scored other tokens of sequence {seq_id} than {tokens}")
    return scores


def _are_of(scores: PromptScores, tokens: range) -> bool:
    lists = (scores.logprobs, scores.ranks, scores.top_tokens, scores.top_logprobs)
    return scores.start == tokens.start and all(len(one) == len(tokens) for one in lists)


def _append(scheduler_state: SchedulerState, seq: Sequence, sample: Sampled) -> TokenOutput | GrammarFailedError:
    if sample.error:
        scheduler_state.fail(seq)
        return GrammarFailedError(sample.error)
    seq.tokens.append(sample.token)
    is_first = len(seq.tokens) == seq.num_given + 1
    finish = _finish_reason(seq, sample.token)
    hand_off = None
    others_go_on = finish is FinishReason.STOP and seq.request.num_readers > 1  # they read the blocks
    if seq.request.hand_off and (finish is None or others_go_on):
        finish = finish or FinishReason.LENGTH
        hand_off = scheduler_state.hand_off(seq)
    elif finish is not None:
        scheduler_state.finish(seq)
    num_cached = seq.num_cached if is_first else 0
    return TokenOutput(sample.token, sample.logprob, sample.top, finish, hand_off, num_cached)


def _finish_reason(seq: Sequence, token: int) -> FinishReason | None:
    """Why the sequence ends with this token; None if it continues."""
    if token in seq.request.stop_token_ids:
        return FinishReason.STOP
    if len(seq.tokens) >= seq.max_num_tokens:
        return FinishReason.LENGTH
    return None

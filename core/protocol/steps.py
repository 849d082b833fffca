"""The messages of the scheduler to a rank, and the rank's answers: msgpack over a stream socket, length-prefixed.

The scheduler decides, ranks execute. A rank keeps the state of a sequence (tokens, block table, sampling) until the
sequence is dropped, so a decode step costs a few integers on the wire.

Frames: 4 bytes little-endian length, then one msgpack value of ``ToRank`` or ``FromRank``. Both ends are started from
one installation, so there is no version on the wire; fields are only ever added at the end, with a default.

History
-------
1: first version.
2: what a rank has sent and received comes in a ``TransferReport``; ``ReadResult`` says which blocks were stale.
3: grammars: ``Vocabulary``, ``CompileGrammar``, ``GrammarCompiled``, ``NewSequence.grammar``, ``Sampled.error``.
4: adapters: ``NewSequence.adapter``, ``RankReady.adapters``.
5: logprobs of prompts: ``SamplingParams.num_prompt_logprobs``, ``Row.score_from``, ``StepResult.scores``.
6: ``ForgetGrammar``.
7: ``Read.promise`` in place of a list of versions.
"""

from __future__ import annotations

import msgspec

from baton_serve.core.protocol.handshake import Compatibility, RankMetadata


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How to pick the next token from logits. ``temperature`` 0 is greedy; ``top_k`` 0 and -1 mean all."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    #: Token ids that may not be sampled before ``min_tokens`` outputs exist (end-of-sequence and stop tokens).
    min_tokens: int = 0
    min_tokens_banned: tuple[int, ...] = ()
    logit_bias: dict[int, float] = {}
    #: Sequences of tokens that the output may not have.
    bad_words: tuple[tuple[int, ...], ...] = ()
    #: The only tokens that may be sampled; None: all may.
    allowed_token_ids: tuple[int, ...] | None = None
    #: Logprobs of the sampled token and of this many most likely ones; 0: of the sampled token only; None: no logprobs.
    num_logprobs: int | None = None
    #: The same for the tokens of the prompt, except its first one. Sampling does not depend on it.
    num_prompt_logprobs: int | None = None


# --- to a rank ---------------------------------------------------------------------------------------------------


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """Makes a sequence known to the rank, or starts it over after preemption (same id, all state replaced)."""

    seq: int
    prompt_token_ids: list[int]
    #: Tokens sampled so far (D: the first token from P).
    output_token_ids: list[int]
    sampling: SamplingParams
    block_ids: list[int]
    #: What the outputs must follow, in llguidance's own notation; "": no grammar.
    grammar: str = ""
    #: Fingerprint of the adapter that computes it, one of ``RankReady.adapters``; "": the model without an adapter.
    adapter: str = ""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Compute ``num_tokens`` tokens of ``seq`` at positions ``start`` and up; the tokens come from the rank's own
    record.

    ``sample``: after the last one, sample the next token and append it to the record. ``score_from``: report the
    logprobs of the prompt's tokens from this one to the one after the row's last; 0: of none.
    """

    seq: int
    start: int
    num_tokens: int
    new_block_ids: list[int]
    sample: bool
    score_from: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """One forward pass over all rows.

    Steps are executed in the order in which they were sent. A step may be sent before the last step's result: its rows
    then begin with tokens that the rank samples itself meanwhile.
    ``fresh`` are blocks about to be overwritten with their new versions; the rank stores these in its version table
    before anything else happens. ``dropped`` are sequences to forget. A step without rows only does these two.
    """

    step_id: int
    fresh: list[tuple[int, int]]
    dropped: list[int]
    started: list[NewSequence]
    rows: list[Row]


class Connect(msgspec.Struct, frozen=True, array_like=True, tag="connect"):
    """Load a remote engine's rank metadata into this rank's NIXL agent. Answered by ``Connected``."""

    engine_id: str
    ranks: list[RankMetadata]


class Disconnect(msgspec.Struct, frozen=True, array_like=True, tag="disconnect"):
    """Forget a remote engine."""

    engine_id: str


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Read remote blocks into local ones, check the fence, notify P. Answered by one ``ReadResult`` in a report.

    ``promise`` as in ``KVTransferParams``. ``fresh`` as in ``Step``: versions of the local blocks, stored before the
    read is posted. With no blocks the read is done at once, and P is notified.
    """

    read_id: int
    engine_id: str
    lease_id: str
    remote_block_ids: list[int]
    local_block_ids: list[int]
    promise: int
    fresh: list[tuple[int, int]]


class CancelRead(msgspec.Struct, frozen=True, array_like=True, tag="cancel_read"):
    """The read is no longer needed. Its ``ReadResult`` still comes, once NIXL will not write to the blocks again."""

    read_id: int


class Vocabulary(msgspec.Struct, frozen=True, array_like=True, tag="vocabulary"):
    """What the tokens stand for. Sent once, before the first grammar.

    ``tokenizer`` is a ``tokenizer.json``; ``eos_token_ids`` end an output where its grammar may end.
    """

    tokenizer: str
    eos_token_ids: list[int]


class CompileGrammar(msgspec.Struct, frozen=True, array_like=True, tag="compile_grammar"):
    """Compile a grammar and keep it for sequences to come, until ``ForgetGrammar``. Answered by ``GrammarCompiled``."""

    compile_id: int
    grammar: str


class ForgetGrammar(msgspec.Struct, frozen=True, array_like=True, tag="forget_grammar"):
    """No sequence of a later step follows the grammar of ``CompileGrammar`` with this id, unless it is compiled again.

    Forgotten when the steps before it have ended, so that all ranks do so at the same step.
    """

    compile_id: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag="shutdown"):
    """End the rank, which answers by closing the connection."""


ToRank = Step | Connect | Disconnect | Read | CancelRead | Vocabulary | CompileGrammar | ForgetGrammar | Shutdown


# --- from a rank -------------------------------------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """A line for people while the rank loads."""

    text: str
    is_warning: bool = False


class RankReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The rank has loaded and serves. ``num_blocks`` is the size of its cache.

    ``load_s`` and ``fingerprint_s``: seconds that reading the weights took, and hashing them afterwards.
    ``adapters``: fingerprints of the LoRA adapters, by the names under which they are served.
    """

    rank: int
    num_blocks: int
    block_bytes: int
    max_model_len: int
    vocab_size: int
    compatibility: Compatibility
    metadata: RankMetadata
    load_s: float = 0.0
    fingerprint_s: float = 0.0
    adapters: dict[str, str] = {}


class Sampled(msgspec.Struct, frozen=True, array_like=True):
    """The token sampled for one row. ``top`` are (token, logprob) pairs, most likely first."""

    seq: int
    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None
    #: Why the grammar cannot go on; the token follows no grammar then. "": nothing is wrong.
    error: str = ""


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of the prompt's tokens from ``start`` on, one entry a token in each list.

    A token's rank is 1 plus the number of other tokens that were at least as likely. ``top_tokens`` and
    ``top_logprobs`` are about the most likely tokens in its place, most likely first.
    """

    seq: int
    start: int
    logprobs: list[float]
    ranks: list[int]
    top_tokens: list[list[int]]
    top_logprobs: list[list[float]]


class StepResult(msgspec.Struct, frozen=True, array_like=True, tag="step_result"):
    """A step is over: its rows are computed and its writes to the cache are visible to readers."""

    step_id: int
    sampled: list[Sampled]
    seconds: float
    #: One for each row with ``score_from``, in the order of the rows.
    scores: list[PromptScores] = []


class Connected(msgspec.Struct, frozen=True, array_like=True, tag="connected"):
    """Answer to ``Connect``; ``error`` is empty when it worked."""

    engine_id: str
    error: str


class GrammarCompiled(msgspec.Struct, frozen=True, array_like=True, tag="grammar_compiled"):
    """Answer to ``CompileGrammar``; ``error`` is empty when it worked."""

    compile_id: int
    error: str


class ReadResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a read on one rank or, once merged, on all ranks. NIXL no longer writes to the read's blocks.

    ``outcome``: ``done`` (as promised), ``stale`` (the fence refused: P has reused a block), ``failed`` (NIXL
    error, unknown engine), ``cancelled``. Only after ``done`` do all local blocks hold the promised data.
    ``num_bytes`` were moved in ``num_descriptors`` pieces; ``seconds`` is the time from the read's start to its end.
    ``stale_blocks``, after ``stale`` only: the local blocks that do not hold what was promised; the others do.
    """

    read_id: int
    outcome: str
    num_bytes: int
    seconds: float
    error: str
    num_descriptors: int = 0
    stale_blocks: list[int] = []


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """All ranks of one reader that read from this rank have read what the lease holds here.

    ``reader`` names one read of one remote engine: another engine that reads the same lease counts by itself.
    """

    lease_id: str
    reader: str


class TransferReport(msgspec.Struct, frozen=True, array_like=True, tag="transfer_report"):
    """What one rank has finished sending and receiving since its last report. Sent as soon as there is something."""

    sent: list[Sent]
    received: list[ReadResult]


class RankFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The rank cannot continue; it exits after this. ``error`` is one line for people."""

    error: str


FromRank = Progress | RankReady | StepResult | Connected | GrammarCompiled | TransferReport | RankFailed

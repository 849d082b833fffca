"""``kv_transfer_params``: the hand-off from P to D, spelled as vLLM spells it, plus Baton's own fields.

P's answer carries one ``KVTransferParams`` in its body; the router passes it to D unchanged. The router reads
only ``HandOffSummary`` out of it and keeps the rest as bytes, since the lists of a long prompt are long.

History
-------
1: first version.
2: ``output_token_ids``, for an answer that continues after tokens that the client has; ``Resume`` asks for that.
3: ``num_readers`` in the request to P: several choices read the blocks of one lease, each by a name of its own.
4: ``adapter``, of a hand-off and of ``Resume``. A worker that does not know the field has no adapters, so it does not
   know the model's name either.
5: ``promise`` in place of a version for each block; see version 3 of the handshake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

#: What the router puts into the request to P (vLLM's spelling).
ASK_PREFILL: dict[str, Any] = {"do_remote_decode": True}
#: Most choices that may read the blocks of one lease.
MAX_READERS = 1024
#: vLLM's block for what a layer with a sliding window does not need any more, ``BlockPool.null_block``: the first block
#: of all. The null block holds nothing, so as data it would be another text.
NULL_BLOCK = 0
#: Between a lease's id and a reader's number. No id of a lease of Baton's has it.
_READER = "_"


def names_null_block(block_ids: Iterable[Sequence[int]]) -> bool:
    """Whether P has given up a block that it hands over. ``block_ids``: one list per group of layers cached alike."""
    return any(NULL_BLOCK in group for group in block_ids)


def reader_name(lease_id: str, reader: int) -> str:
    """What reader number ``reader`` calls the lease in its notifications; the first one, 0, calls it by its id."""
    return f"{lease_id}{_READER}{reader}" if reader else lease_id


def lease_of_reader(name: str) -> tuple[str, int]:
    """The lease's id and the reader's number, of a name by ``reader_name``; any other text is an id with reader 0."""
    lease_id, _, number = name.rpartition(_READER)
    if lease_id and number.isascii() and number.isdigit() and len(number) <= len(str(MAX_READERS)):
        return lease_id, int(number)
    return name, 0


class KVTransferParams(msgspec.Struct, kw_only=True, omit_defaults=False):
    """What D needs in order to read a finished prefill from P.

    ``remote_host``/``remote_port`` name P's *internal* port, where the handshake is served.
    ``remote_block_ids`` has one list per KV group; Baton's engines have one group. Block ``i`` of the list holds tokens
    ``[i * block_size, (i + 1) * block_size)`` of the prompt and the ``output_token_ids`` after it; the last block may
    be partly filled. ``remote_num_tokens`` counts both.
    """

    do_remote_prefill: bool
    do_remote_decode: bool
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    remote_block_ids: list[list[int]]
    remote_num_tokens: int
    tp_size: int = 1
    pp_size: int = 1
    dcp_size: int = 1
    transfer_mode: str = "pull"

    # Baton's own fields. Another engine (vLLM) does not send them.
    lease_id: str = ""
    #: The largest version, unsigned 64-bit, that a block may have if it still holds what P computed; 0: none. P gives a
    #: larger one to each block that it overwrites from now on.
    promise: int = 0
    #: The token that P sampled and that the client has. D continues after it. -1: D samples the first token.
    first_token: int = -1
    #: The logprobs entry of the first token in OpenAI's shape for this endpoint, when the client asked for any.
    first_logprobs: dict[str, Any] | None = None
    prompt_token_ids: list[int] = []
    #: Seed of the sampling noise, which is a function of (seed, position) only. D uses it when the body has none.
    seed: int | None = None
    #: Unix seconds, so that all chunks of one stream have the same value, whichever worker sends them.
    created: int = 0
    #: Prompt tokens that P found in its prefix cache (``usage.prompt_tokens_details.cached_tokens``).
    num_cached_tokens: int = 0
    #: Output tokens before ``first_token``, which the client also has: P continued after them.
    output_token_ids: list[int] = []
    #: Fingerprint of the adapter that computed the blocks; "": the model without an adapter.
    adapter: str = ""


class Resume(msgspec.Struct, kw_only=True):
    """``kv_transfer_params.resume`` of a request that continues after the tokens that its client has already.

    With ``do_remote_decode`` the receiver is a P; without either flag it computes the rest of the answer. The answer
    continues as if the sequence had been preempted there; nothing of ``token_ids`` is shown again.
    """

    #: All output tokens that the client has, P's first one included.
    token_ids: list[int]
    #: ``created`` of the chunks that the client has; 0 if it has none.
    created: int = 0
    #: Fingerprint of the adapter that computed the tokens; "": the model without an adapter.
    adapter: str = ""


class HandOffSummary(msgspec.Struct, kw_only=True):
    """The few fields of ``KVTransferParams`` that the router itself acts on (unknown fields are skipped)."""

    remote_engine_id: str = ""
    remote_request_id: str = ""
    lease_id: str = ""
    first_token: int = -1
    remote_num_tokens: int = 0
    #: vLLM's: where the side channel of P's engine is, and how many ranks it has.
    remote_host: str = ""
    remote_port: int = 0
    #: Where a vLLM with Baton's connector answers handshakes over HTTP; 0: it does not.
    handshake_port: int = 0
    tp_size: int = 1
    pp_size: int = 1
    dcp_size: int = 1

"""Checks whether a request can run here at all, before it takes any resource.

The server has checked what it can see without the engine: the tokens, that they leave something to sample
(``workers/server/answers/request_leg.py``), and the hand-off by itself (``transfer_params.py`` there).
"""

from __future__ import annotations

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.workers.engine.api import EngineRequest, InvalidHandOffError, OtherAdapterError, PromptTooLongError
from baton_serve.workers.engine.config import EngineConfig


def check_request(request: EngineRequest, config: EngineConfig) -> None:
    """Raise PromptTooLongError, InvalidHandOffError or OtherAdapterError."""
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    if request.remote is not None:
        _check_remote(request, request.remote, num_tokens, config)
        num_tokens += request.remote.first_token >= 0
    if num_tokens + 1 > config.max_total_tokens:
        raise PromptTooLongError(
            f"there are {num_tokens} tokens of prompt and output; with one more at most {config.max_total_tokens} fit"
        )


def _check_remote(request: EngineRequest, remote: KVTransferParams, num_tokens: int, config: EngineConfig) -> None:
    if remote.adapter != request.adapter:
        raise OtherAdapterError(
            f"P's blocks were computed by {_named(remote.adapter)}, and this worker would go on with"
            f" {_named(request.adapter)}"
        )
    if remote.remote_num_tokens != num_tokens:
        raise InvalidHandOffError(f"remote_num_tokens is {remote.remote_num_tokens}; the request has {num_tokens}")
    num_blocks, needed = len(remote.remote_block_ids[0]), -(-num_tokens // config.block_size)
    if num_blocks != needed:
        raise InvalidHandOffError(f"{num_blocks} remote blocks for tokens of {needed}")
    if remote.first_token >= config.vocab_size:
        raise InvalidHandOffError(f"first_token is not in 0..{config.vocab_size - 1}")
    if remote.first_token in request.stop_token_ids:  # it ended on P, so there is nothing to sample here
        raise InvalidHandOffError("the request was finished by its first token")


def _named(adapter: str) -> str:
    return f"the adapter with fingerprint {adapter}" if adapter else "the model without an adapter"

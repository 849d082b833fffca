"""Checks whether a request can run here at all, before it takes any resource."""

from __future__ import annotations

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.workers.engine.api import (
    EngineRequest,
    InvalidHandOffError,
    InvalidRequestError,
    OtherAdapterError,
    PromptTooLongError,
)
from baton_serve.workers.engine.config import EngineConfig


def check_request(request: EngineRequest, config: EngineConfig) -> None:
    """Raise InvalidRequestError, PromptTooLongError, InvalidHandOffError or OtherAdapterError.

    The hand-off's own fields were checked when it was decoded (``workers/server/answers/transfer_params.py``).
    """
    prompt = request.prompt_token_ids
    if not prompt:
        raise InvalidRequestError("the prompt has no tokens")
    if min(prompt) < 0 or max(prompt) >= config.vocab_size:
        raise InvalidRequestError(f"a token id of the prompt is not in 0..{config.vocab_size - 1}")
    if request.adapter and request.adapter not in config.adapters:
        raise InvalidRequestError("this worker does not have the adapter")
    least = 1 if request.hand_off or request.remote is not None else 0
    if request.max_tokens < least:
        raise InvalidRequestError(f"max_tokens must be at least {least}, got {request.max_tokens}")
    _check_outputs(request, config)
    if len(prompt) + len(request.output_token_ids) + 1 > config.max_total_tokens:
        raise PromptTooLongError(
            f"{_token_counts(request)}; with one token of output at most {config.max_total_tokens} fit here"
        )
    if request.remote is not None:
        _check_remote(request, request.remote, config)


def _check_outputs(request: EngineRequest, config: EngineConfig) -> None:
    """Check the tokens that were sampled on another worker."""
    outputs = request.output_token_ids
    if not outputs:
        return
    if min(outputs) < 0 or max(outputs) >= config.vocab_size:
        raise InvalidRequestError(f"an output token id is not in 0..{config.vocab_size - 1}")
    if len(outputs) >= request.max_tokens or not request.stop_token_ids.isdisjoint(outputs):
        raise InvalidRequestError("the request was finished by the output tokens that it comes with")


def _token_counts(request: EngineRequest) -> str:
    num_prompt, num_outputs = len(request.prompt_token_ids), len(request.output_token_ids)
    outputs = f" and {num_outputs} of output" if num_outputs else ""
    return f"the prompt has {num_prompt} tokens{outputs}"


def _check_remote(request: EngineRequest, remote: KVTransferParams, config: EngineConfig) -> None:
    if request.hand_off:
        raise InvalidHandOffError("a request cannot both read blocks and hand them off")
    if remote.adapter != request.adapter:
        raise OtherAdapterError(
            f"P's blocks were computed by {_named(remote.adapter)}, and this worker would go on with"
            f" {_named(request.adapter)}"
        )
    if request.sampling.num_prompt_logprobs is not None:
        raise InvalidHandOffError("the logprobs of a prompt are known only where it is computed")
    num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    if remote.remote_num_tokens != num_tokens:
        raise InvalidHandOffError(f"remote_num_tokens is {remote.remote_num_tokens}; {_token_counts(request)}")
    if remote.prompt_token_ids and remote.prompt_token_ids != request.prompt_token_ids:
        raise InvalidHandOffError("prompt_token_ids differ from the request's prompt")
    if remote.output_token_ids != request.output_token_ids:
        raise InvalidHandOffError("output_token_ids differ from the request's outputs so far")
    num_blocks, needed = len(remote.remote_block_ids[0]), -(-num_tokens // config.block_size)
    if num_blocks != needed:
        raise InvalidHandOffError(f"{num_blocks} remote blocks for tokens of {needed}")
    _check_first_token(request, remote, config)


def _named(adapter: str) -> str:
    return f"the adapter with fingerprint {adapter}" if adapter else "the model without an adapter"


def _check_first_token(request: EngineRequest, remote: KVTransferParams, config: EngineConfig) -> None:
    token = remote.first_token
    if token < 0:
        return
    if token >= config.vocab_size:
        raise InvalidHandOffError(f"first_token is not in 0..{config.vocab_size - 1}")
    # Such a request ended on P, so there is nothing to sample here.
    if token in request.stop_token_ids or request.max_tokens < len(request.output_token_ids) + 2:
        raise InvalidHandOffError("the request was finished by its first token")
    if remote.remote_num_tokens + 2 > config.max_total_tokens:
        raise PromptTooLongError(
            f"what P has and its first token are {remote.remote_num_tokens + 1} tokens; with one more at most"
            f" {config.max_total_tokens} fit here"
        )

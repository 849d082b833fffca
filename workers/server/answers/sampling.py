"""From a validated request to the sampling parameters of the engine."""

from __future__ import annotations

from collections.abc import Iterable

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.requests import Request
from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.text.tokenizer import Tokenizer

#: Most digits of a token id, leading zeros included. Python refuses to parse numbers of several thousand digits.
_MAX_TOKEN_DIGITS = 20
#: At this temperature all tokens are equally likely, as far as float32 can tell. The temperatures above it are no
#: different, and those that float32 has no number for would make no numbers of the logits of banned tokens.
_MAX_TEMPERATURE = 1e12


def sampling_params(
    request: Request, identity: Identity, tokenizer: Tokenizer, *, seed: int, scores_prompt: bool
) -> SamplingParams:
    """The sampling parameters. ``scores_prompt`` False: the client has the logprobs of its prompt, if it wants any.
    Raises BadRequestError for token ids outside the vocabulary.
    """
    vocab_size, defaults = identity.vocab_size, identity.defaults
    allowed, stops = request.allowed_token_ids, request.stop_token_ids or []
    check_tokens(allowed or (), vocab_size, "Token ids of 'allowed_token_ids'", "allowed_token_ids")
    check_tokens(stops, vocab_size, "Token ids of 'stop_token_ids'", "stop_token_ids")
    return SamplingParams(
        temperature=min(_number(1.0, request.temperature, defaults.temperature), _MAX_TEMPERATURE),
        top_p=_number(1.0, request.top_p, defaults.top_p),
        top_k=max(int(_number(0, request.top_k, defaults.top_k)), 0),
        min_p=_number(0.0, request.min_p, defaults.min_p),
        seed=seed,
        presence_penalty=_number(0.0, request.presence_penalty),
        frequency_penalty=_number(0.0, request.frequency_penalty),
        repetition_penalty=_number(1.0, request.repetition_penalty, defaults.repetition_penalty),
        min_tokens=request.min_tokens or 0,
        min_tokens_banned=tuple(sorted(tokenizer.eos_token_ids.union(stops))) if request.min_tokens else (),
        logit_bias=_logit_bias(request, vocab_size),
        bad_words=tuple(map(tuple, tokenizer.encode_words(request.bad_words or ()))),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        num_logprobs=request.num_logprobs,
        num_prompt_logprobs=request.num_prompt_logprobs if scores_prompt else None,
    )


def check_tokens(tokens: Iterable[int], vocab_size: int, what: str, param: str) -> None:
    """Raise BadRequestError for token ids outside the vocabulary."""
    if max(tokens, default=0) >= vocab_size:
        message = f"{what} must be below {vocab_size}, the size of the vocabulary."
        raise BadRequestError(message, param=param, code="invalid_value")


def _number(neutral: float, *given: float | None) -> float:
    """The first that is given."""
    return float(next((value for value in given if value is not None), neutral))


def _logit_bias(request: Request, vocab_size: int) -> dict[int, float]:
    given = request.logit_bias or {}
    # A number that is too long to be read is in no vocabulary.
    tokens = [int(token) if len(token) <= _MAX_TOKEN_DIGITS else vocab_size for token in given]
    check_tokens(tokens, vocab_size, "Token ids of 'logit_bias'", "logit_bias")
    return dict(zip(tokens, map(float, given.values()), strict=True))

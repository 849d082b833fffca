"""Requests and configurations for the engine's tests."""

from __future__ import annotations

from typing import Any

from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.steps import SamplingParams
from baton_serve.workers.engine.api import EngineRequest, HandOff
from baton_serve.workers.engine.config import EngineConfig
from tests.kits.engine.fake_rank import PROMISE, next_token, remote_blocks, values

VOCAB = 11
BLOCK_SIZE = 4


def config(**changes: Any) -> EngineConfig:
    """16 blocks of 4 tokens, and no steps sent ahead, unless changed."""
    fields: dict[str, Any] = {
        "num_blocks": 16,
        "block_size": BLOCK_SIZE,
        "max_model_len": 64,
        "vocab_size": VOCAB,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "steps_ahead": False,
    }
    return EngineConfig(**{**fields, **changes})


def request(
    name: str, prompt: list[int], max_tokens: int = 4, scored: int | None = None, **fields: Any
) -> EngineRequest:
    """A greedy request. ``scored``: it wants the logprobs of its prompt, and of so many others."""
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(temperature=0, num_prompt_logprobs=scored),
        max_tokens=max_tokens,
        **fields,
    )


def params(prompt: list[int], **changes: Any) -> KVTransferParams:
    """What a made-up P answers after ``prompt``."""
    fields: dict[str, Any] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "p",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "remote_block_ids": [remote_blocks(prompt, BLOCK_SIZE)],
        "remote_num_tokens": len(prompt),
        "lease_id": "theirs",
        "promise": PROMISE,
        "first_token": next_token(values(prompt)[-1], VOCAB),
        "prompt_token_ids": prompt,
    }
    return KVTransferParams(**{**fields, **changes})


def params_of(hand_off: HandOff, prompt: list[int], engine_id: str, **changes: Any) -> KVTransferParams:
    """What ``engine_id`` answers after it handed off ``prompt``."""
    fields: dict[str, Any] = {
        "remote_engine_id": engine_id,
        "remote_block_ids": [hand_off.block_ids],
        "lease_id": hand_off.lease_id,
        "promise": hand_off.promise,
    }
    return params(prompt, **{**fields, **changes})


def remote_request(name: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> EngineRequest:
    """A request whose prompt P has computed; ``remote`` may be given."""
    return request(name, prompt, max_tokens, **{"remote": params(prompt), **fields})


def expected(prompt: list[int], count: int) -> list[int]:
    """The first ``count`` outputs after ``prompt``."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(values(tokens)[-1], VOCAB))
    return tokens[len(prompt) :]

"""The choices of a request: their bodies, seeds and ids."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.core.protocol.openai.choices import Choices
from baton_serve.core.protocol.request_ids import is_request_id, new_request_id, new_router_id, owner_of
from baton_serve.router.request.choices.plan import choice_id, planned

TEXT: dict[str, Any] = {"model": "m", "prompt": "x"}


def bodies(choices: Choices, **fields: Any) -> list[dict[str, Any]]:
    return list(planned(choices, {**TEXT, **fields}))


def test_choices_of_one_prompt_differ_in_their_seeds() -> None:
    assert bodies(Choices(2, 2), seed=7) == [{**TEXT, "seed": 7}, {**TEXT, "seed": 8}]
    assert bodies(Choices(2, 2)) == [TEXT, TEXT]


@pytest.mark.parametrize(("seed", "seconds"), [(2**63 - 1, -(2**63)), (-1, 0), (-(2**63), 1 - 2**63)])
def test_the_seeds_of_choices_stay_within_64_bits(seed: int, seconds: int) -> None:
    assert [body["seed"] for body in bodies(Choices(2, 2), seed=seed)] == [seed, seconds]


def test_each_prompt_has_the_same_seeds() -> None:
    found = bodies(Choices(2, 2, ("x", [1])), seed=7)
    assert [(body["prompt"], body["seed"]) for body in found] == [("x", 7), ("x", 8), ([1], 7), ([1], 8)]


@pytest.mark.parametrize(("asked", "sent"), [({}, 0), ({"logprobs": 3}, 3)])
def test_the_best_are_found_by_their_logprobs(asked: dict[str, Any], sent: int) -> None:
    assert [body["logprobs"] for body in bodies(Choices(1, 2), **asked)] == [sent, sent]
    assert "logprobs" not in bodies(Choices(2, 2))[0]


def test_the_ids_of_choices_differ_and_belong_to_the_requests_router() -> None:
    request_id = new_request_id(new_router_id())
    ids = [choice_id(request_id, index) for index in (0, 1, 65535)]
    assert len(set(ids)) == 3
    for one in ids:
        assert is_request_id(one) and owner_of(one) == owner_of(request_id)
        assert one[:16] == request_id[:16]

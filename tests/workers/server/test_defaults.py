"""What a request is sampled with where it says nothing: what the model's makers recommend, on every leg."""

from __future__ import annotations

from typing import Any

import pytest

from baton_serve.workers.text.sampling_defaults import SamplingDefaults
from tests.kits.worker.front import ADAPTER, MODEL, TEXT, chat, completion, front

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05, max_tokens=5)
TO_P = {"do_remote_decode": True}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
@pytest.mark.parametrize("leg", [{}, {"kv_transfer_params": TO_P}])
async def test_a_request_that_says_nothing(path: str, body: dict[str, Any], leg: dict[str, Any]) -> None:
    async with front(defaults=DEFAULTS) as worker:
        await worker.http.post(path, json={**body, **leg})
        sampling = worker.engine.requests[0].sampling
    found = sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty
    assert found == (0.6, 0.95, 20, 0.1, 1.05)


async def test_what_a_request_says_counts() -> None:
    """Also what is the API's own default: it was asked for."""
    said = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "max_tokens": 7}
    async with front(defaults=DEFAULTS) as worker:
        await worker.http.post(CHAT, json=chat(**said))
        asked = worker.engine.requests[0]
    sampling = asked.sampling
    found = sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty
    assert (found, asked.max_tokens) == ((1, 1, 0, 0, 1), 7)


async def test_the_limit_is_for_chats() -> None:
    """Completions have OpenAI's, as with vLLM."""
    async with front(defaults=DEFAULTS) as worker:
        await worker.http.post(CHAT, json=chat())
        await worker.http.post(COMPLETIONS, json=completion())
        assert [request.max_tokens for request in worker.engine.requests] == [5, 16]


async def test_p_hands_nothing_over_after_the_last_token_of_a_limit_that_no_router_knows() -> None:
    """The first of one, or the last when a stream goes on here. D would have nothing to decode."""
    begun = {"token_ids": [5, 6, 7, 8], "created": 1}
    for defaults, params in (
        (SamplingDefaults(max_tokens=1), TO_P),
        (DEFAULTS, {**TO_P, "resume": begun}),
    ):
        async with front(defaults=defaults) as worker:
            answer = (await worker.http.post(CHAT, json=chat(kv_transfer_params=params))).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer.get("kv_transfer_params") is None and not worker.leases.granted
            more = (await worker.http.post(CHAT, json=chat(kv_transfer_params=params, max_tokens=9))).json()
            assert more["kv_transfer_params"]["lease_id"] and worker.leases.granted


async def test_a_model_says_what_is_in_force() -> None:
    async with front(defaults=DEFAULTS) as worker:
        cards = {card["id"]: card for card in (await worker.http.get("/v1/models")).json()["data"]}
    assert cards[MODEL]["sampling_defaults"] == cards[ADAPTER.name]["sampling_defaults"] == DEFAULTS.given
    async with front() as worker:
        assert (await worker.http.get(f"/v1/models/{MODEL}")).json()["sampling_defaults"] == {}
        assert (await worker.http.post(CHAT, json=chat())).json()["choices"][0]["message"]["content"] == TEXT

"""Adapters over HTTP: each is a model of its own by name, and P's and D's legs say whose blocks they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from baton_serve.core.protocol.worker import AdapterRecord
from tests.kits.worker.front import ADAPTER, MAX_MODEL_LEN, MODEL, chat, completion, front, tokens_of
from tests.kits.worker.hand_off import ASK, GOOD

PATHS: list[tuple[str, Callable[..., dict[str, Any]]]] = [
    ("/v1/chat/completions", chat),
    ("/v1/completions", completion),
]


async def test_models_list_the_adapters_as_vllm_does() -> None:
    same = {
        "object": "model",
        "created": 1,
        "owned_by": "baton",
        "max_model_len": MAX_MODEL_LEN,
        "sampling_defaults": {},
    }
    own = {"id": MODEL, "root": "/models/x", "parent": None, **same}
    adapter = {"id": ADAPTER.name, "root": ADAPTER.root, "parent": MODEL, **same}
    async with front() as worker:
        assert (await worker.http.get("/v1/models")).json() == {"object": "list", "data": [own, adapter]}
        assert (await worker.http.get(f"/v1/models/{ADAPTER.name}")).json() == adapter
        assert (await worker.http.get("/v1/models/other")).status_code == 404


@pytest.mark.parametrize(("path", "body_of"), PATHS)
async def test_an_adapter_is_asked_by_its_name(path: str, body_of: Callable[..., dict[str, Any]]) -> None:
    async with front() as worker:
        answers = [(await worker.http.post(path, json=body_of(model=model))).json() for model in (MODEL, ADAPTER.name)]
        other = await worker.http.post(path, json=body_of(model="other"))
    assert [answer["model"] for answer in answers] == [MODEL, ADAPTER.name]
    assert answers[0]["system_fingerprint"] != answers[1]["system_fingerprint"]
    assert [request.adapter for request in worker.engine.requests] == ["", ADAPTER.fingerprint]
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_system_fingerprint_is_that_of_the_adapter_and_not_of_its_name() -> None:
    async with front() as worker:
        identity = worker.identity
    again = AdapterRecord(name="again", root="elsewhere", fingerprint=ADAPTER.fingerprint)
    other = AdapterRecord(name="other", root=ADAPTER.root, fingerprint="0" * 32)
    object.__setattr__(identity, "adapters", {one.name: one for one in (ADAPTER, again, other)})
    first, second, third, own = map(identity.system_fingerprint, [ADAPTER.name, "again", "other", MODEL])
    assert first == second and len({first, third, own}) == 3


async def test_p_says_which_adapter_computed_the_blocks_and_d_is_told() -> None:
    async with front() as worker:
        body = completion(model=ADAPTER.name)
        params = (await worker.http.post("/v1/completions", json={**body, **ASK})).json()["kv_transfer_params"]
        assert params["adapter"] == ADAPTER.fingerprint
        await worker.http.post("/v1/completions", json={**body, "kv_transfer_params": params})
    request = worker.engine.requests[-1]
    assert request.remote is not None
    assert request.remote.adapter == request.adapter == ADAPTER.fingerprint


@pytest.mark.parametrize("adapter", ["a b", "x" * 200, 5, None])
async def test_what_is_no_fingerprint_is_refused(adapter: object) -> None:
    async with front() as worker:
        params = {**GOOD, "adapter": adapter}
        body = completion(tokens_of("abc"), kv_transfer_params=params)
        response = await worker.http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "kv_params_invalid")
    assert not worker.engine.requests


async def test_the_tokenizer_is_that_of_the_model() -> None:
    async with front() as worker:
        for model, status in ((ADAPTER.name, 200), ("other", 404)):
            tokens = await worker.http.post("/tokenize", json={"model": model, "prompt": "the baton"})
            text = await worker.http.post("/detokenize", json={"model": model, "tokens": [5]})
            assert (tokens.status_code, text.status_code) == (status, status)
            if status == 200:
                assert tokens.json()["tokens"] == tokens_of("the baton")


@pytest.mark.parametrize("asked", [{}, {"do_remote_decode": True}])
@pytest.mark.parametrize(
    ("model", "adapter"),
    [(ADAPTER.name, ""), (ADAPTER.name, "0" * 32), (MODEL, ADAPTER.fingerprint)],
)
async def test_tokens_of_another_adapter_are_not_continued(model: str, adapter: str, asked: dict[str, Any]) -> None:
    async with front() as worker:
        right = {MODEL: "", ADAPTER.name: ADAPTER.fingerprint}[model]
        answers = []
        for one in (adapter, right):
            resume = {"token_ids": [5], "adapter": one}
            body = completion(model=model, kv_transfer_params={"resume": resume, **asked})
            answers.append(await worker.http.post("/v1/completions", json=body))
    assert [answer.status_code for answer in answers] == [502, 200]
    assert answers[0].json()["error"]["code"] == "other_adapter"
    assert [request.adapter for request in worker.engine.requests] == [right]


async def test_a_resumption_names_an_adapter_by_its_fingerprint() -> None:
    async with front() as worker:
        body = completion(kv_transfer_params={"resume": {"token_ids": [5], "adapter": "a b"}})
        response = await worker.http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "kv_params_invalid")

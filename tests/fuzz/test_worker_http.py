"""What may be sent to a worker's two ports, over an engine that is scripted: by a router, an old one, or a stranger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.kits.fuzz.profile import (
    JSON,
    LONG_TEXT,
    NASTY_TEXTS,
    as_json,
    check_error,
    check_excerpts,
    fuzz,
    mutated,
    tried,
    with_long_text,
)
from tests.kits.worker.front import Front, chat, completion, front, tokens_of
from tests.kits.worker.hand_off import GOOD

PATHS = ("/v1/chat/completions", "/v1/completions")
PROMPT = tokens_of("hello")
D_PARAMS: dict[str, Any] = {
    **GOOD,
    "remote_num_tokens": len(PROMPT),
    "promise": 2**64 - 1,
    "first_token": 70,
    "prompt_token_ids": PROMPT,
}
P_PARAMS: dict[str, Any] = {"do_remote_decode": True, "resume": {"token_ids": [70, 71], "created": 5}}


class Worker:
    """Both ports of one worker."""

    def __init__(self, front: Front) -> None:
        self.front = front

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Any = None, *, internal: bool = False
    ) -> httpx.Response:
        client = self.front.internal if internal else self.front.http
        return await client.request(method, path, content=body, headers=headers)

    async def tried(self, area: str, answer: httpx.Response) -> None:
        """No mistake, and nothing of it is left."""
        tried[area] += 1
        check_error(answer)
        for lease_id in list(self.front.engine.leases._by_lease):
            self.front.leases.drop(lease_id)
        await self.front.engine.until_idle()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[Worker]:
    async with front() as made:
        yield Worker(made)


async def test_what_is_changed_below_is_accepted(worker: Worker) -> None:
    for params in (D_PARAMS, P_PARAMS, {"resume": P_PARAMS["resume"]}):
        answer = await worker.send("POST", PATHS[1], orjson.dumps(completion(kv_transfer_params=params)))
        assert answer.status_code == 200, answer.content
        await worker.tried("a worker's kv_transfer_params", answer)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", NASTY_TEXTS, ids=range(len(NASTY_TEXTS)))
async def test_a_nasty_body(worker: Worker, path: str, body: bytes) -> None:
    answer = await worker.send("POST", path, body)
    assert answer.status_code >= 400
    await worker.tried("a worker's body", answer)


@fuzz(40)
@given(body=mutated(orjson.dumps(chat(kv_transfer_params=P_PARAMS, seed=1))), path=st.sampled_from(PATHS))
async def test_a_body_with_changed_bytes(worker: Worker, body: bytes, path: str) -> None:
    await worker.tried("a worker's body", await worker.send("POST", path, body))


FIELDS = [*D_PARAMS, "resume", "output_token_ids", "first_logprobs", "tp_size", "dcp_size", "seed", "created", "x"]
ODD = st.sampled_from(
    [
        -1,
        2**31,
        2**63,
        2**64,
        [],
        [[]],
        [[-1]],
        [[3, 3]],
        [[3], [4]],
        [70] * 500,
        [-1],
        [1],
        {"token_ids": [1]},
        "",
        "a\r\n",
        {"token_ids": []},
        {"token_ids": [2**31]},
        {"token_ids": [70] * 500},
        {"content": [{}]},
        0,
        True,
        None,
    ]
)


@fuzz(80)
@given(
    params=st.sampled_from([D_PARAMS, P_PARAMS]),
    changes=st.dictionaries(st.sampled_from(FIELDS), ODD | JSON, max_size=3),
    more=st.fixed_dictionaries({"stream": st.booleans(), "max_tokens": st.sampled_from([1, 2, 5, None])}),
    path=st.sampled_from(PATHS),
)
async def test_kv_transfer_params_of_another_p(
    worker: Worker, params: dict[str, Any], changes: dict[str, Any], more: dict[str, Any], path: str
) -> None:
    make = chat if "chat" in path else completion
    body = as_json(make(kv_transfer_params={**params, **changes}, **more))
    await worker.tried(
        "a worker's kv_transfer_params", await worker.send("POST", path, body, {"x-baton-token-ids": "1"})
    )


@fuzz(40)
@given(params=JSON)
async def test_kv_transfer_params_of_any_kind(worker: Worker, params: Any) -> None:
    answer = await worker.send("POST", PATHS[1], as_json(completion(kv_transfer_params=params)))
    await worker.tried("a worker's kv_transfer_params", answer)


INTERNAL = (
    ("GET", "/health"),
    ("GET", "/internal/state"),
    ("POST", "/internal/abort/"),
    ("POST", "/internal/routers/"),
    ("POST", "/internal/drain"),
    ("POST", "/internal/resume"),
    ("GET", "/kv/handshake/"),
)
TAILS = ("", "x", "%00", "%ff", "..", "%2e%2e/state", "0" * 5000, "gone", "%0d%0ax/gone", "\u20ac", "-1", "\u0661")


@fuzz(40)
@given(place=st.sampled_from(INTERNAL), tail=st.sampled_from(TAILS), body=st.sampled_from(NASTY_TEXTS))
async def test_the_internal_port(worker: Worker, place: tuple[str, str], tail: str, body: bytes) -> None:
    method, path = place
    answer = await worker.send(method, path + tail, b"" if method == "GET" else body, internal=True)
    tried["a worker's internal port"] += 1
    check_error(answer)
    worker.front.engine.resume()


FIRST_LOGPROBS = {"content": [{"token": "x", "logprob": 0.5, "bytes": [1], "top_logprobs": []}], "refusal": None}


@pytest.mark.parametrize("params", [P_PARAMS, {**D_PARAMS, "first_logprobs": FIRST_LOGPROBS}], ids=["P", "D"])
async def test_an_error_repeats_little_of_a_body(worker: Worker, params: dict[str, Any]) -> None:
    for path, body in zip(PATHS, (chat(), completion()), strict=True):
        for other in with_long_text({**body, "kv_transfer_params": params}):
            answer = await worker.send("POST", path, orjson.dumps(other))
            check_excerpts(answer)
            await worker.tried("long texts", answer)


async def test_an_error_repeats_little_of_a_path(worker: Worker) -> None:
    for method, path in (*INTERNAL, ("GET", "/v1/models/"), ("GET", "/"), ("POST", "/v1/completions")):
        for internal in (False, True):
            answer = await worker.send(method, path + quote(LONG_TEXT), internal=internal)
            check_excerpts(answer)
            await worker.tried("long texts", answer)

"""Each row of the table of features: the answer is that of one vLLM alone, and the request goes as the row says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.kits.vllm.folding import folded, masked
from tests.kits.vllm.stack import ADAPTER, MODEL, Router, VllmStack
from tests.vllm.features import FEATURES, Feature, Goes

#: How many requests P and D get.
LEGS = {
    Goes.SPLIT: (1, 1),
    Goes.WHOLE: (0, 1),
    Goes.REFUSED_BY_P: (1, 0),
    Goes.REFUSED_BY_D: (0, 1),
    Goes.REFUSED: (0, 0),
}
#: As which vLLM counts paths that it does not have.
UNKNOWN = "none"
CASES = [
    pytest.param(feature, streamed, id=f"{feature.name}{'-streamed' if streamed else ''}")
    for feature in FEATURES
    for streamed in feature.streamed
]


class Went(NamedTuple):
    """What the servers count: requests at P and at D, prompt tokens whose blocks D has read, and those it computed."""

    prefill: float
    decode: float
    read: float
    computed: float


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def router(vllm: VllmStack) -> AsyncIterator[Router]:
    await vllm.need("p1", "d1")
    async with vllm.router([vllm.address("p1")], [vllm.address("d1")]) as router:
        yield router


@pytest.mark.parametrize(("feature", "streamed"), CASES)
async def test_a_feature(vllm: VllmStack, router: Router, feature: Feature, streamed: bool) -> None:
    before = await went(vllm, feature.path)
    got = await asked(vllm, router.url, feature.path, feature.body(), streamed)
    after = await went(vllm, feature.path)
    assert (after.prefill - before.prefill, after.decode - before.decode) == LEGS[feature.goes]
    if feature.goes is Goes.REFUSED:
        assert got[0] == 400
        assert feature.sentence in got[1]["error"]["message"]
        return
    if feature.goes is Goes.SPLIT:
        assert after.read > before.read
        assert after.computed == before.computed
    # P has computed the prompt itself, while D has it from P.
    assert got == await asked(vllm, vllm.url("p1"), feature.path, feature.body(), streamed)
    if feature.fields and feature.matters:
        assert got != await asked(vllm, vllm.url("p1"), feature.path, feature.body(plain=True), streamed)


async def test_models(vllm: VllmStack, router: Router) -> None:
    models = (await vllm.http.get(f"{router.url}/v1/models")).json()["data"]
    assert {model["id"]: model["parent"] for model in models} == {MODEL: None, ADAPTER: MODEL}


async def asked(vllm: VllmStack, url: str, path: str, body: dict[str, Any], streamed: bool) -> tuple[int, Any]:
    """Status and answer, in a form that can be compared."""
    response = await vllm.http.post(f"{url}{path}", json={**body, "stream": True} if streamed else body)
    is_stream = response.headers["content-type"].startswith("text/event-stream")
    assert is_stream == (streamed and response.is_success)
    return response.status_code, folded(response.text) if is_stream else masked(response.json())


async def went(vllm: VllmStack, path: str) -> Went:
    """What the servers have counted so far."""
    at_p, at_d = [await _samples(vllm, name) for name in ("p1", "d1")]
    requests = [_num_requests(samples, path) for samples in (at_p, at_d)]
    return Went(*requests, _tokens(at_d, "external_kv_transfer"), _tokens(at_d, "local_compute"))


async def _samples(vllm: VllmStack, name: str) -> list[Sample]:
    text = (await vllm.http.get(f"{vllm.url(name)}/metrics")).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _num_requests(samples: list[Sample], path: str) -> float:
    counted = [one for one in samples if one.name == "http_requests_total"]
    return sum(one.value for one in counted if one.labels["handler"] in (path, UNKNOWN))


def _tokens(samples: list[Sample], source: str) -> float:
    counted = [one for one in samples if one.name == "vllm:prompt_tokens_by_source_total"]
    return sum(one.value for one in counted if one.labels["source"] == source)

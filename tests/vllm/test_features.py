"""Each row of the table of features: the answer is that of one vLLM alone, and the request goes as the row says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

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
#: Fields that differ from answer to answer.
OWN = frozenset({"id", "item_id", "created", "created_at", "completed_at", "request_id", "sequence_number"})
#: Fields whose strings come in pieces.
PIECES = frozenset({"content", "text", "delta", "arguments", "reasoning", "partial_json"})
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


# --- answers in a form that can be compared: without ids and times, and streams without where they were cut.


def masked(value: Any) -> Any:
    """The same without what differs from answer to answer, and without nulls.

    A router may have asked for token ids that the client did not want, and then takes the whole field out.
    """
    if isinstance(value, dict):
        return {name: masked(one) for name, one in value.items() if name not in OWN and one is not None}
    return [masked(one) for one in value] if isinstance(value, list) else value


def folded(text: str) -> list[Any]:
    """The events of a stream; those that follow one another and are of one kind are put together."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [masked(json.loads(line)) for line in lines if line != "[DONE]"]
    groups = [list(group) for _, group in groupby(events, lambda event: event.get("type"))]
    return [*map(_together, groups), *(["[DONE]"] if "[DONE]" in lines else [])]


def _together(events: list[Any]) -> Any:
    whole = events[0]
    for event in events[1:]:
        whole = _joined("", whole, event)
    return whole


def _joined(name: str, old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: _joined(key, old.get(key), new.get(key)) for key in {**old, **new}}
    if isinstance(old, list) and isinstance(new, list):
        return _choices(old, new) if name in ("choices", "tool_calls") else [*old, *new]
    if name in PIECES and isinstance(old, str) and isinstance(new, str):
        return old + new
    return old if new is None else new


def _choices(old: list[Any], new: list[Any]) -> list[Any]:
    """Elements that have an index, by which they are put together."""
    by_index = {one["index"]: one for one in old}
    for one in new:
        by_index[one["index"]] = _joined("", by_index[one["index"]], one) if one["index"] in by_index else one
    return [by_index[index] for index in sorted(by_index)]

"""``/v1/models``: what those that serve a model say of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from baton_serve.router.pool.model_card import ModelFacts, merged
from tests.kits.router.cluster import Cluster, eventually

LOADED = 1_700_000_000


def announce(cluster: Cluster, **facts: Any) -> None:
    """The registry tells of each worker what it says of its model."""
    statuses = [cluster._status(worker) for worker in cluster.workers]
    cluster.pool.apply(
        [msgspec.structs.replace(one, record=msgspec.structs.replace(one.record, **facts)) for one in statuses]
    )


async def test_a_model_says_when_it_was_loaded_from_where_and_how_long_it_is(cluster: Cluster) -> None:
    await cluster.add("prefill")
    cluster.pool.apply([])
    announce(
        cluster,
        root="/models/m",
        created=LOADED,
        max_model_len=4096,
        sampling_defaults={"temperature": 0.6, "top_k": 5},
    )
    card = {
        "id": "m",
        "object": "model",
        "created": LOADED,
        "owned_by": "baton",
        "root": "/models/m",
        "parent": None,
        "max_model_len": 4096,
        "sampling_defaults": {"temperature": 0.6, "top_k": 5},
    }
    assert (await cluster.client.get("/v1/models")).json() == {"object": "list", "data": [card]}
    answer = await cluster.client.get("/v1/models/m")
    assert answer.json() == card and "5.0" not in answer.text
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        assert (await client.models.retrieve("m")).created == LOADED


async def test_a_model_card_has_defaults_for_what_no_worker_has_said(cluster: Cluster) -> None:
    """As a worker of an older version."""
    await cluster.add("prefill")
    cluster.pool.apply([])
    announce(cluster, max_model_len=0)
    card = (await cluster.client.get("/v1/models/m")).json()
    assert (card["root"], card["max_model_len"]) == ("m", None)
    assert card["created"] > LOADED, "since when this router knows"


def test_merged_facts_hold_wherever_a_request_goes() -> None:
    told = [
        ModelFacts(),
        ModelFacts(root="a", created=9, max_model_len=100),
        ModelFacts(root="b", created=7, max_model_len=200),
    ]
    assert merged(told) == ModelFacts(root="a", created=7, max_model_len=100)
    assert merged([]) == ModelFacts()


@pytest.mark.settings(redis_url="", prefill=["http://127.0.0.1:1"], decode=["http://127.0.0.1:1"])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"root": "org/m", "created": 5, "max_model_len": 8192, "parent": None}, ("org/m", 5, 8192)),
        ({"root": None, "created": None, "max_model_len": None}, ("m", None, None)),
        ({"root": ["x"], "created": -1, "max_model_len": 2**70}, ("m", None, None)),
        ({"created": 1.5, "max_model_len": True}, ("m", None, None)),
    ],
)
async def test_facts_that_another_engine_says_are_understood_or_left_out(
    cluster: Cluster, said: dict[str, Any], shown: tuple[Any, ...]
) -> None:
    other = await cluster.add("both", ours=False)
    other.card = said
    cluster.pool.apply([])
    cluster.pool.add_static([other.url], [other.url])
    await eventually(lambda: cluster.pool.models() == ["m"])
    card = (await cluster.client.get("/v1/models/m")).json()
    assert (card["root"], card["max_model_len"]) == (shown[0], shown[2])
    assert card["created"] == shown[1] or (shown[1] is None and card["created"] > LOADED)

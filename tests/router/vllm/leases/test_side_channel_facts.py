"""What is read out of a side channel's answer, and what is said about answers of others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.router.vllm.leases.side_channel_facts import (
    SideChannelError,
    SideChannelFacts,
    SideChannelReason,
    parse,
    query,
)

CLOCK = msgspec.msgpack.encode(12.5)
METADATA: dict[str, Any] = {
    "engine_id": "e1",
    "agent_metadata": b"nixl",
    "block_size": 16,
    "kv_cache_layout": "HND",
    "attn_backend_name": "CPU_ATTN",
    "num_blocks": 7,
}


def answer(metadata: dict[str, Any] = METADATA, **payload: Any) -> bytes:
    packed = msgspec.msgpack.encode(metadata)
    return msgspec.msgpack.encode({"compatibility_hash": "c0ffee", "agent_metadata_bytes": packed} | payload)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in METADATA.items() if key != name}


def test_vllms_answer_is_read() -> None:
    facts = SideChannelFacts(compatibility_hash="c0ffee", engine_id="e1")
    found = parse("p:1", [answer(), CLOCK])
    assert (found.facts, found.agent_metadata) == (facts, b"nixl")


@pytest.mark.parametrize("checks", [True, False])
def test_batons_connector_has_a_fence_unless_it_is_off(checks: bool) -> None:
    table = {"engine_id": "e1", "address": 1 << 40, "num_slots": 56, "checks": checks}
    assert parse("p:1", [answer(fence=table), CLOCK]).facts.has_fence is checks


def test_fields_that_are_not_needed_may_be_missing() -> None:
    found = parse("p:1", [answer({"engine_id": "e1", "agent_metadata": b"nixl"}), CLOCK])
    assert found.facts == SideChannelFacts(compatibility_hash="c0ffee", engine_id="e1")


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        ([answer()], "1 frames"),
        ([answer(), CLOCK, b""], "3 frames"),
        ([answer(without("engine_id")), CLOCK], "engine_id"),
        ([answer(without("agent_metadata")), CLOCK], "agent_metadata"),
        ([answer(METADATA | {"agent_metadata": 1}), CLOCK], "agent_metadata"),
        ([answer(compatibility_hash=None), CLOCK], "compatibility_hash"),
        ([answer(fence=3), CLOCK], "fence"),
        ([answer(agent_metadata_bytes=b"\xc1"), CLOCK], "0.32"),
        ([msgspec.msgpack.encode({}), CLOCK], "compatibility_hash"),
    ],
)
def test_an_answer_of_another_version_is_named(frames: list[bytes], what: str) -> None:
    with pytest.raises(SideChannelError, match=r"p:1 is of another version of vLLM") as caught:
        parse("p:1", frames)
    assert caught.value.reason is SideChannelReason.OTHER_VERSION
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "frame", [b"", b"HTTP/1.1 400", b"\xc1", b"\xa1\x80", 100_000 * b"\x91", msgspec.msgpack.encode([1])]
)
def test_an_answer_that_is_not_vllms_is_named(frame: bytes) -> None:
    with pytest.raises(SideChannelError, match=r"^p:1 answers, but not as vLLM's side channel does") as caught:
        parse("p:1", [frame])
    assert caught.value.reason is SideChannelReason.NOT_VLLM


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_garbage_for_an_answer_is_an_error_of_the_side_channel(frames: list[bytes]) -> None:
    with pytest.raises(SideChannelError):
        parse("p:1", frames)


def test_the_question_is_what_vllm_decodes() -> None:
    message, pp_rank, tp_rank = msgspec.msgpack.decode(query(2, 3))
    assert (message, pp_rank, tp_rank) == (b"get_meta_msg", 2, 3)

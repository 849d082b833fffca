"""Golden bytes: what one version of a process says, another must still understand."""

from __future__ import annotations

import msgspec
import pytest

from baton_serve.core.protocol import steps
from baton_serve.core.protocol.handoff import HandOffSummary, KVTransferParams
from baton_serve.core.protocol.handshake import Compatibility, Handshake, RankMetadata, Shard

GOLDEN_STEPS = [
    (
        steps.Step(7, [(3, 2**63)], [1], [], [steps.Row(2, 16, 1, [], True), steps.Row(3, 0, 4, [], False, 1)]),
        "96a4737465700791920 3cf8000000000000000910190929602100190c300960300 0490c201".replace(" ", ""),
    ),
    (
        steps.Read(1, "e", "ab", [4], [5], 2**64 - 1, []),
        "98a47265616401a165a2616291049105cfffffffffffffffff90",
    ),
    (steps.CancelRead(9), "92ab63616e63656c5f7265616409"),
    (steps.Disconnect("e"), "92aa646973636f6e6e656374a165"),
    (steps.CompileGrammar(3, "g"), "93af636f6d70696c655f6772616d6d617203a167"),
    (steps.ForgetGrammar(3), "92ae666f726765745f6772616d6d617203"),
    (steps.Shutdown(), "91a873687574646f776e"),
]

GOLDEN_EVENTS = [
    (
        steps.TransferReport([steps.Sent("ab", "e-1")], [steps.ReadResult(1, "stale", 9, 0.5, "", 2, [5])]),
        "93af7472616e736665725f7265706f72749192a26162a3652d31919701a57374616c6509cb3fe0000000000000a0029105",
    ),
    (
        steps.StepResult(1, [steps.Sampled(2, 3)], 0.5, [steps.PromptScores(4, 1, [-0.5], [2], [[7]], [[-0.25]])]),
        "95ab737465705f726573756c740191950203c0c0a0cb3fe0000000000000"
        "9196040191cbbfe0000000000000910291910791 91cbbfd0000000000000".replace(" ", ""),
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN_STEPS, ids=lambda v: type(v).__name__)
def test_messages_to_a_rank_keep_their_bytes(message: steps.ToRank, golden: str) -> None:
    assert msgspec.msgpack.encode(message).hex() == golden
    assert msgspec.msgpack.Decoder(steps.ToRank).decode(bytes.fromhex(golden)) == message


@pytest.mark.parametrize(("message", "golden"), GOLDEN_EVENTS, ids=lambda v: type(v).__name__)
def test_messages_from_a_rank_keep_their_bytes(message: steps.FromRank, golden: str) -> None:
    assert msgspec.msgpack.encode(message).hex() == golden
    assert msgspec.msgpack.Decoder(steps.FromRank).decode(bytes.fromhex(golden)) == message


def test_fields_that_were_added_later_may_be_missing() -> None:
    step = msgspec.msgpack.Decoder(steps.ToRank).decode(bytes.fromhex("96a473746570079090909195021001 90c3"))
    assert step == steps.Step(7, [], [], [], [steps.Row(2, 16, 1, [], True)])
    golden = bytes.fromhex("94ab737465705f726573756c740191950203c0c0a0cb3fe0000000000000")
    result = msgspec.msgpack.Decoder(steps.FromRank).decode(golden)
    assert result == steps.StepResult(1, [steps.Sampled(2, 3)], 0.5)


def params() -> KVTransferParams:
    return KVTransferParams(
        do_remote_prefill=True,
        do_remote_decode=False,
        remote_engine_id="e1",
        remote_request_id="r1",
        remote_host="127.0.0.1",
        remote_port=9,
        remote_block_ids=[[1, 2]],
        remote_num_tokens=20,
        lease_id="aa",
        promise=2**64 - 1,
        first_token=5,
        prompt_token_ids=[1, 2, 3],
    )


def test_kv_transfer_params_survive_json_with_a_promise_of_64_bits() -> None:
    assert msgspec.json.decode(msgspec.json.encode(params()), type=KVTransferParams) == params()


def test_the_router_reads_only_the_summary() -> None:
    summary = msgspec.json.decode(msgspec.json.encode(params()), type=HandOffSummary)
    assert summary == HandOffSummary(
        remote_engine_id="e1",
        remote_request_id="r1",
        lease_id="aa",
        first_token=5,
        remote_num_tokens=20,
        remote_host="127.0.0.1",
        remote_port=9,
    )


def test_params_of_an_engine_without_our_fields_are_read() -> None:
    foreign = {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_request_id": "r",
        "remote_host": "h", "remote_port": 1, "remote_block_ids": [[1]], "remote_num_tokens": 3, "tp_size": 2,
        "something_new": 1,
    }  # fmt: skip
    decoded = msgspec.convert(foreign, KVTransferParams)
    assert (decoded.lease_id, decoded.first_token, decoded.tp_size) == ("", -1, 2)


def compatibility(**changes: object) -> Compatibility:
    base = Compatibility(
        weights_fingerprint="f", kv_dtype="float32", layout="block,kv_head,layer,kv,slot,head_dim", block_size=16,
        num_layers=2, num_kv_heads=2, head_dim=32,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


@pytest.mark.parametrize(
    "change",
    [{"weights_fingerprint": "g"}, {"kv_dtype": "bfloat16"}, {"layout": "x"}, {"block_size": 32}, {"num_layers": 3},
     {"num_kv_heads": 4}, {"head_dim": 64}, {"wire_version": 4}],
)  # fmt: skip
def test_every_part_of_the_compatibility_counts(change: dict[str, object]) -> None:
    assert compatibility().hash == compatibility().hash
    assert compatibility(**change).hash != compatibility().hash


def test_a_handshake_from_another_version_can_still_say_so() -> None:
    """The second part stays opaque, whatever a later version puts there."""
    later = {"wire_version": 99, "engine_id": "e", "compatibility_hash": "h", "metadata": b"\xc1 not msgpack", "new": 1}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=Handshake).wire_version == 99


def test_the_metadata_of_a_rank_survives_msgpack() -> None:
    metadata = RankMetadata(
        engine_id="e", rank=0, num_ranks=1, agent_metadata=b"\x00\xff", agent_name="a", cache_address=2**47,
        cache_memory_type="DRAM", cache_device_id=0, num_blocks=10, block_bytes=1024, version_address=4096,
        shard=Shard(first_layer=0, last_layer=2, first_head=0, last_head=2),
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(metadata), type=RankMetadata) == metadata

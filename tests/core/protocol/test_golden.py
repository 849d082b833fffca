"""Golden bytes: what one version of a process says, another must still understand. A change here is a change on the
wire: write it into that file's history.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton_serve.core.protocol import status, steps
from baton_serve.core.protocol.handoff import HandOffSummary, KVTransferParams, Resume
from baton_serve.core.protocol.handshake import Compatibility, Handshake, RankMetadata, Shard
from baton_serve.core.protocol.router import RouterRecord
from baton_serve.core.protocol.token_keys import announcement_key
from baton_serve.core.protocol.vllm_server import VllmRecord, VllmStatus
from baton_serve.core.protocol.worker import AdapterRecord, Role, WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.core.registry.announcement import (
    ROUTERS,
    VLLM_SERVERS,
    WORKERS,
    RouterAnnouncement,
    VllmAnnouncement,
    WorkerAnnouncement,
    encode,
)
from baton_serve.core.registry.signature import sign, verify

PARAMS = KVTransferParams(
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
    first_logprobs={"tokens": ["a"]},
    prompt_token_ids=[1, 2, 3],
    seed=-7,
    created=1_700_000_000,
    num_cached_tokens=16,
    output_token_ids=[4],
    adapter="f2",
)
COMPATIBILITY = Compatibility(
    weights_fingerprint="f",
    kv_dtype="float32",
    layout="block",
    block_size=16,
    num_layers=2,
    num_kv_heads=2,
    head_dim=32,
)
METADATA = RankMetadata(
    engine_id="e1",
    rank=0,
    num_ranks=1,
    agent_metadata=b"\x00\xff",
    agent_name="a",
    cache_address=2**47,
    cache_memory_type="DRAM",
    cache_device_id=0,
    num_blocks=10,
    block_bytes=1024,
    version_address=4096,
    shard=Shard(first_layer=0, last_layer=2, first_head=0, last_head=2),
)
VLLM_STATUS = VllmStatus(
    record=VllmRecord(
        server_id="s1",
        role=Role.DECODE,
        model="m",
        url="http://h:1",
        version="0.32.0",
        side_channel_host="h",
        side_channel_port=5600,
        max_num_seqs=4,
        max_model_len=100,
        block_size=16,
        num_blocks=10,
        tp=2,
        started_s=5.5,
    ),
    load=WorkerLoad(running=1, free_blocks=7, pinned_blocks=3, leases=2),
)
ROUTER = RouterRecord(router_id="0123456789ab", url="http://h:1", internal_url="http://h:2", group="g", started_s=5)
STATUS = WorkerStatus(
    record=WorkerRecord(
        worker_id="w1",
        engine_id="e1",
        role=Role.PREFILL,
        model="m",
        url="http://h:1",
        internal_url="http://h:2",
        compatibility_hash="c",
        max_model_len=100,
        block_size=16,
        num_blocks=10,
        max_num_seqs=4,
        tp=2,
        weights_fingerprint="f",
        root="/models/m",
        created=1_700_000_000,
        adapters=(AdapterRecord(name="a", root="/adapters/a", fingerprint="f2"),),
        version="0.1.0",
    ),
    load=WorkerLoad(running=1, draining=True, peers_failed=1, peer_errors={"e2": "timeout: x"}),
)
SEQUENCE = steps.NewSequence(3, [1, 2], [5], steps.SamplingParams(temperature=0.5, seed=7, num_logprobs=0), [4, 6])

JSON: list[tuple[Any, bytes]] = [
    (
        PARAMS,
        b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e1","remote_request_id":"r1",'
        b'"remote_host":"127.0.0.1","remote_port":9,"remote_block_ids":[[1,2]],"remote_num_tokens":20,"tp_size'
        b'":1,"pp_size":1,"dcp_size":1,"transfer_mode":"pull","lease_id":"aa","promise":184467440737095516'
        b'15,"first_token":5,"first_logprobs":{"tokens":["a"]},"prompt_token_ids":[1,2,3],"seed":-7,"created":1700000000,"num_cached_tokens":16,"output_token_ids":[4],"adapter":"f2"}',
    ),
    (Resume(token_ids=[4, 5], created=1_700_000_000), b'{"token_ids":[4,5],"created":1700000000,"adapter":""}'),
    (
        WorkerAnnouncement(id="w1", ttl_ms=3000, entry=STATUS),
        b'{"worker_id":"w1","ttl_ms":3000,"sequence":0,"status":{"record":{"worker_id":"w1","engine_id":"e1","role":"prefil'
        b'l","model":"m","url":"http://h:1","internal_url":"http://h:2","compatibility_hash":"c","max_model_le'
        b'n":100,"block_size":16,"num_blocks":10,"max_num_seqs":4,"tp":2,"weights_fingerprint":"f","root":"/models/m","created":1700000000,"adapters":[{"name":"a","root":"/adapters/a","fingerprint":"f2"}],"version":"0.1.0","sampling_defaults":{},"name":""},"load":{"running":1,"waiting":0,"rea'
        b'ding":0,"free_blocks":0,"cached_blocks":0,"pinned_blocks":0,"leased_blocks":0,"leases":0,"draining":'
        b'true,"peers_connecting":0,"peers_connected":0,"peers_failed":1,"peer_errors":{"e2":"timeout: x"}}}}',
    ),
    (WorkerAnnouncement(id="w1"), b'{"worker_id":"w1","ttl_ms":0,"sequence":0,"status":null}'),
    (
        VllmAnnouncement(id="s1", ttl_ms=10000, entry=VLLM_STATUS),
        b'{"server_id":"s1","ttl_ms":10000,"sequence":0,"status":{"record":{"server_id":"s1","role":"decode","model":"m",'
        b'"url":"http://h:1","version":"0.32.0","side_channel_host":"h","side_channel_port":5600,"handshake_port":0,'
        b'"max_num_seqs":4,"max_model_len":100,"block_size":16,"num_blocks":10,"tp":2,"started_s":5.5},"load":{"running":1,"waiting":0,'
        b'"reading":0,"free_blocks":7,"cached_blocks":0,"pinned_blocks":3,"leased_blocks":0,"leases":2,"draining":false,'
        b'"peers_connecting":0,"peers_connected":0,"peers_failed":0,"peer_errors":{}}}}',
    ),
    (VllmAnnouncement(id="s1"), b'{"server_id":"s1","ttl_ms":0,"sequence":0,"status":null}'),
    (
        RouterAnnouncement(id="0123456789ab", ttl_ms=1500, entry=ROUTER),
        b'{"router_id":"0123456789ab","ttl_ms":1500,"sequence":0,"record":{"router_id":"0123456789ab","url":"http://h:1",'
        b'"internal_url":"http://h:2","group":"g","started_s":5}}',
    ),
    (RouterAnnouncement(id="0123456789ab"), b'{"router_id":"0123456789ab","ttl_ms":0,"sequence":0,"record":null}'),
]
#: Other messages have these bytes in them.
METADATA_HEX = (
    "8ca9656e67696e655f6964a26531a472616e6b00a96e756d5f72616e6b7301ae6167656e745f6d65746164617461c40200ff"
    "aa6167656e745f6e616d65a161ad63616368655f61646472657373cf0000800000000000b163616368655f6d656d6f72795f"
    "74797065a44452414daf63616368655f6465766963655f696400aa6e756d5f626c6f636b730aab626c6f636b5f6279746573"
    "cd0400af76657273696f6e5f61646472657373cd1000a5736861726484ab66697273745f6c6179657200aa6c6173745f6c61"
    "79657202aa66697273745f6865616400a96c6173745f6865616402"
)
MSGPACK: list[tuple[Any, Any, str]] = [
    (
        SEQUENCE,
        steps.NewSequence,
        "9703920102910583ab74656d7065726174757265cb3fe0000000000000a47365656407ac6e756d5f6c6f6770726f627300920406a0a0",
    ),
    (steps.Connect("e1", [METADATA]), steps.ToRank, f"93a7636f6e6e656374a2653191{METADATA_HEX}"),
    (
        steps.RankReady(0, 10, 1024, 100, 32, COMPATIBILITY, METADATA, 1.5, 0.5, {"a": "f2"}),
        steps.FromRank,
        "9ba57265616479000acd0400642088b3776569676874735f66696e6765727072696e74a166a86b765f6474797065a7666c6f"
        "61743332a66c61796f7574a5626c6f636baa626c6f636b5f73697a6510aa6e756d5f6c617965727302ac6e756d5f6b765f68"
        f"6561647302a8686561645f64696d20ac776972655f76657273696f6e03{METADATA_HEX}"
        "cb3ff8000000000000cb3fe000000000000081a161a26632",
    ),
    (METADATA, RankMetadata, METADATA_HEX),
    (
        Handshake(wire_version=3, engine_id="e1", compatibility_hash="c", metadata=b"\xff"),
        Handshake,
        "84ac776972655f76657273696f6e03a9656e67696e655f6964a26531b2636f6d7061746962696c6974795f68617368a163a8"
        "6d65746164617461c401ff",
    ),
    (
        steps.Step(7, [(3, 2**63)], [1], [], [steps.Row(2, 16, 1, [], True), steps.Row(3, 0, 4, [], False, 1)]),
        steps.ToRank,
        "96a47374657007919203cf8000000000000000910190929602100190c3009603000490c201",
    ),
    (
        steps.Read(1, "e", "ab", [4], [5], 2**64 - 1, []),
        steps.ToRank,
        "98a47265616401a165a2616291049105cfffffffffffffffff90",
    ),
    (steps.CancelRead(9), steps.ToRank, "92ab63616e63656c5f7265616409"),
    (steps.Disconnect("e"), steps.ToRank, "92aa646973636f6e6e656374a165"),
    (steps.CompileGrammar(3, "g"), steps.ToRank, "93af636f6d70696c655f6772616d6d617203a167"),
    (steps.ForgetGrammar(3), steps.ToRank, "92ae666f726765745f6772616d6d617203"),
    (steps.Shutdown(), steps.ToRank, "91a873687574646f776e"),
    (
        steps.TransferReport([steps.Sent("ab", "e-1")], [steps.ReadResult(1, "stale", 9, 0.5, "", 2, [5])]),
        steps.FromRank,
        "93af7472616e736665725f7265706f72749192a26162a3652d31919701a57374616c6509cb3fe0000000000000a0029105",
    ),
    (
        steps.StepResult(1, [steps.Sampled(2, 3)], 0.5, [steps.PromptScores(4, 1, [-0.5], [2], [[7]], [[-0.25]])]),
        steps.FromRank,
        "95ab737465705f726573756c740191950203c0c0a0cb3fe00000000000009196040191cbbfe000000000000091029191079191"
        "cbbfd0000000000000",
    ),
]


@pytest.mark.parametrize(("message", "golden"), JSON, ids=lambda v: type(v).__name__)
def test_messages_in_json_are_written_as_the_golden_bytes_say(message: Any, golden: bytes) -> None:
    assert msgspec.json.encode(message) == golden
    assert msgspec.json.decode(golden, type=type(message)) == message


def test_a_signed_announcement_is_written_as_the_golden_bytes_say() -> None:
    key = announcement_key("sesame")
    assert key.hex() == "a105f2e86ef3cfb84f1eb7d5d70ef65227fc9a47a42046ada256f76fb829c40c"
    unsigned = encode(ROUTERS.withdraw("0123456789ab", 7))
    signed = sign(key, "router", unsigned)
    assert signed == (
        b'{"router_id":"0123456789ab","ttl_ms":0,"sequence":7,"record":null,'
        b'"signature":"076e86b4bdcd1357f42294c89b425d48f38862fcbb5ff4ea5302e4694fcf9ffc"}'
    )
    assert verify(key, "router", signed) == unsigned
    assert ROUTERS.decode(signed) == ROUTERS.decode(unsigned), "a reader without a key skips the signature"


@pytest.mark.parametrize(("message", "kind", "golden"), MSGPACK, ids=lambda v: type(v).__name__)
def test_messages_in_msgpack_are_written_as_the_golden_bytes_say(message: Any, kind: Any, golden: str) -> None:
    assert msgspec.msgpack.encode(message).hex() == golden
    assert msgspec.msgpack.decode(bytes.fromhex(golden), type=kind) == message


def test_an_announcement_is_encoded_by_its_own_functions() -> None:
    worker = WORKERS.announce(STATUS, 3000)
    assert WORKERS.decode(encode(worker)) == worker
    later = encode(worker).replace(b'"load":{', b'"new":1,"load":{"newer":[],')
    assert WORKERS.decode(later) == worker, "what a later version adds is skipped"
    server = encode(VLLM_SERVERS.announce(VLLM_STATUS, 3000))
    assert VLLM_SERVERS.decode(server.replace(b'"tp"', b'"new":1,"tp"')).entry == VLLM_STATUS
    router = ROUTERS.announce(ROUTER, 1500)
    assert ROUTERS.decode(encode(router).replace(b'"group"', b'"new":1,"group"')) == router


def test_the_hash_of_the_compatibility_is_the_same_everywhere() -> None:
    assert COMPATIBILITY.hash == "da6524190e687ebed5f4c595cd9084ae"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (status.Progress(text="loading"), b'{"event":"progress","text":"loading"}\n'),
        (status.Ready(url="u"), b'{"event":"ready","url":"u","internal_url":"","worker_id":""}\n'),
        (status.Failed(error="e"), b'{"event":"failed","error":"e"}\n'),
    ],
    ids=lambda v: type(v).__name__,
)
def test_status_lines_are_written_as_the_golden_bytes_say(message: status.Status, line: bytes) -> None:
    assert status.encode(message) == line
    assert status.decode(line) == message


def test_fields_that_were_added_later_may_be_missing() -> None:
    step = msgspec.msgpack.Decoder(steps.ToRank).decode(bytes.fromhex("96a473746570079090909195021001 90c3"))
    assert step == steps.Step(7, [], [], [], [steps.Row(2, 16, 1, [], True)])
    golden = bytes.fromhex("94ab737465705f726573756c740191950203c0c0a0cb3fe0000000000000")
    result = msgspec.msgpack.Decoder(steps.FromRank).decode(golden)
    assert result == steps.StepResult(1, [steps.Sampled(2, 3)], 0.5)


def test_the_router_reads_only_the_summary() -> None:
    summary = msgspec.json.decode(msgspec.json.encode(PARAMS), type=HandOffSummary)
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


@pytest.mark.parametrize(
    "change",
    [{"weights_fingerprint": "g"}, {"kv_dtype": "bfloat16"}, {"layout": "x"}, {"block_size": 32}, {"num_layers": 3},
     {"num_kv_heads": 4}, {"head_dim": 64}, {"wire_version": 4}],
)  # fmt: skip
def test_every_part_of_the_compatibility_counts(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(COMPATIBILITY, **change).hash != COMPATIBILITY.hash


def test_a_handshake_from_another_version_can_still_say_so() -> None:
    """The second part stays opaque, whatever a later version puts there."""
    later = {"wire_version": 99, "engine_id": "e", "compatibility_hash": "h", "metadata": b"\xc1 not msgpack", "new": 1}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=Handshake).wire_version == 99

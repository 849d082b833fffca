"""A vLLM prefill worker without vLLM, as a process. Not a test.

Its side channel and its leases follow vLLM 0.32 (``base_scheduler._nixl_handshake_listener``,
``pull_worker._get_new_notifs``, ``base_worker._handle_heartbeat`` and ``_reap_expired_send_leases``), exceptions
included. Commands are lines of JSON on standard input, events are lines of JSON on standard output.
"""

from __future__ import annotations

import json
import secrets
import select
import sys
import time
from typing import Any

import msgspec
import nixl._api as nixl
import zmq

from tests.kits.vllm.notifications import Renewed, read_notification

#: How often it looks for notifications, milliseconds: as often as vLLM's engine steps.
STEP_MS = 5


def tell(event: str, **details: Any) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


class Rank:
    """One rank with its NIXL agent and its part of each lease."""

    def __init__(self, rank: tuple[int, int], extension_s: float) -> None:
        self.rank = rank
        self._extension_s = extension_s
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = nixl.nixl_agent(secrets.token_hex(8), config)
        #: Ends of leases, by id.
        self.leases: dict[str, float] = {}

    def metadata(self) -> bytes:
        return bytes(self._agent.get_agent_metadata())

    def step(self) -> None:
        for payloads in self._agent.get_new_notifs().values():
            for payload in payloads:
                self._take(payload)
        now = time.perf_counter()
        for lease_id in [lease_id for lease_id, end in self.leases.items() if now >= end]:
            self._end(lease_id, "expired")

    def _take(self, payload: bytes) -> None:
        notice = read_notification(payload)
        if isinstance(notice, Renewed):
            new_end = time.perf_counter() + self._extension_s
            self.leases |= {
                lease_id: max(self.leases[lease_id], new_end) for lease_id in notice.ids if lease_id in self.leases
            }
            tell("renewed", rank=self.rank, ids=notice.ids)
        elif notice.lease_id not in self.leases:
            tell("potentially invalid", rank=self.rank, id=notice.lease_id)
        else:
            self._end(notice.lease_id, "released")

    def _end(self, lease_id: str, how: str) -> None:
        del self.leases[lease_id]
        tell(how, rank=self.rank, id=lease_id)


class Listener:
    """The side channel. ``spoil``: nothing, ``silent``, ``old`` (one frame) or ``garbage``."""

    def __init__(self, engine_id: str, ranks: list[Rank], spoil: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._answers = {rank.rank: _payload(engine_id, rank) for rank in ranks}
        self._spoil = spoil

    def step(self) -> None:
        if self._socket.poll(STEP_MS):
            identity, _, question = self._socket.recv_multipart()
            message, pp_rank, tp_rank = msgspec.msgpack.decode(question)
            assert message == b"get_meta_msg", message
            tell("asked", rank=(pp_rank, tp_rank))
            frames = [self._answers[pp_rank, tp_rank], msgspec.msgpack.encode(time.perf_counter())]
            match self._spoil:
                case "silent":
                    return
                case "old":
                    frames = frames[:1]
                case "garbage":
                    frames = [b"\xc1", b"?"]
            self._socket.send_multipart([identity, b"", *frames])


def _payload(engine_id: str, rank: Rank) -> bytes:
    metadata = {"engine_id": engine_id, "agent_metadata": rank.metadata(), "block_size": 16, "kv_cache_layout": "HND"}
    packed = msgspec.msgpack.encode(metadata | {"attn_backend_name": "CPU_ATTN", "device_id": 0})
    return msgspec.msgpack.encode({"compatibility_hash": "c0ffee", "agent_metadata_bytes": packed})


def main() -> None:
    spec = json.loads(sys.argv[1])
    duration_s = spec["duration_s"]
    ranks = [
        Rank((pp_rank, tp_rank), duration_s * 2 // 3)
        for pp_rank in range(spec["pp_size"])
        for tp_rank in range(spec["tp_size"])
    ]
    listener = Listener(spec["engine_id"], ranks, spec["spoil"])
    tell("ready", port=listener.port)
    while True:
        listener.step()
        for rank in ranks:
            rank.step()
        while select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            for rank in ranks:
                rank.leases[line.strip()] = time.perf_counter() + duration_s
            tell("granted", id=line.strip())


if __name__ == "__main__":
    main()

"""The real decode worker with the demo model, and what it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from baton_serve.baton.cluster.cluster import DEMO_WORKER
from baton_serve.baton.cluster.process import ProcessSpec, alone
from baton_serve.baton.demo import MODEL_NAME
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.handshake import Handshake
from bench.handshakes.engines import HOST

if TYPE_CHECKING:
    import random
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from baton_serve.core.protocol.status import Ready
    from bench.client import Client
    from bench.handshakes.engines import MetEngine

STOP_TIMEOUT_S = 5.0
SPEC = ProcessSpec("decode", {**DEMO_WORKER, "num-blocks": 1024, "max-num-seqs": 64})
#: Blocks of a prompt.
NUM_BLOCKS = 4


def decode_worker(folder: Path) -> AbstractAsyncContextManager[Ready]:
    """A decode worker as a process of its own, without Redis, and where it serves. Raises ChildDiedError."""
    return alone("decode", SPEC, folder, STOP_TIMEOUT_S)


async def handshake_of(client: Client, worker: Ready) -> Handshake:
    """What the worker tells a reader of its blocks: engines that it can read from have to be like it."""
    return msgspec.msgpack.decode(await client.get(worker.internal_url, "/kv/handshake/0"), type=Handshake)


def request_for(peer: MetEngine, rng: random.Random) -> dict[str, object]:
    """A completion of a prompt that no engine has seen, with this engine as its P."""
    prompt = [rng.randrange(10, 400) for _ in range(16 * NUM_BLOCKS)]
    params = KVTransferParams(
        do_remote_prefill=True,
        do_remote_decode=False,
        remote_engine_id=peer.engine_id,
        remote_request_id=f"{rng.getrandbits(128):032x}",
        remote_host=HOST,
        remote_port=peer.port,
        remote_block_ids=[list(range(NUM_BLOCKS))],
        remote_num_tokens=len(prompt),
        lease_id=f"{rng.getrandbits(128):032x}",
        promise=1,
        first_token=10,
        prompt_token_ids=prompt,
        seed=1,
    )
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": 3,
        "ignore_eos": True,
        "kv_transfer_params": msgspec.to_builtins(params),
    }


def background() -> dict[str, object]:
    """The completion during which everything happens; almost as long as the model's positions reach."""
    prompt = list(range(10, 42))
    return {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 8000, "ignore_eos": True}

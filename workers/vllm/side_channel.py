"""Asks the side channel of another engine where the words of its ranks are, and reads it in answers over HTTP.

vLLM's own handshake asks the same question, and keeps of the answer what vLLM knows. The side channel answers nothing
but this question: any other would end its listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx
from vllm.utils.network_utils import make_zmq_path

from baton_serve.workers.vllm.fence.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: How long vLLM waits for the answer to the same question, ms.
TIMEOUT_MS = 5000


class _Payload(msgspec.Struct):
    """The part of an answer that vLLM does not know; None: an engine without a fence."""

    fence: Table | None = None


def ask_tables(host: str, port: int, ranks: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Table]:
    """The tables of these ranks, (pp, tp), of those that have one.

    Raises zmq.ZMQError when no answer comes within ``TIMEOUT_MS``, and msgspec.DecodeError for one that is none.
    """
    tables: dict[tuple[int, int], Table] = {}
    with zmq_ctx(zmq.REQ, make_zmq_path("tcp", host, port)) as channel:
        channel.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        for rank in ranks:
            channel.send(msgspec.msgpack.encode((GET_META_MSG, *rank)))
            tables |= tables_in({rank: channel.recv_multipart()[0]})
    return tables


def tables_in(payloads: Mapping[tuple[int, int], bytes]) -> dict[tuple[int, int], Table]:
    """The tables of those ranks that have one. Raises msgspec.DecodeError for what is no answer."""
    decoded = {rank: msgspec.msgpack.decode(payload, type=_Payload) for rank, payload in payloads.items()}
    return {rank: payload.fence for rank, payload in decoded.items() if payload.fence is not None}

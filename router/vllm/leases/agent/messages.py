"""The messages between the router and the process with its NIXL agent, in the frames of ``core/process/frames.py``.

Both ends are of one installation, so there is no version on the wire.
"""

from __future__ import annotations

import msgspec

from baton_serve.router.vllm.leases.remote_engine import RemoteEngine
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelFacts, SideChannelReason

#: Longest wait for the ranks of an engine to answer, seconds; each of them has five.
CONNECT_S = 30.0


class Connect(msgspec.Struct, frozen=True, array_like=True, tag="connect"):
    """Have the agent know every rank of an engine. Answered by one ``Connected``."""

    where: RemoteEngine


class Notify(msgspec.Struct, frozen=True, array_like=True, tag="notify"):
    """Send notifications to every rank of an engine, if all are connected. Answered by one ``Notified``."""

    number: int
    engine_id: str
    num_ranks: int
    payloads: list[bytes]


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Disconnect an engine."""

    engine_id: str


class Query(msgspec.Struct, frozen=True, array_like=True, tag="query"):
    """Ask a side channel about its engine. Answered by one ``Queried``.

    ``handshake_port``: ask there over HTTP instead; 0: it is not known.
    """

    number: int
    host: str
    port: int
    handshake_port: int = 0


class UseKey(msgspec.Struct, frozen=True, array_like=True, tag="use_key"):
    """Ask over HTTP where that is known, with proofs under this key. Comes before what asks. Its repr hides the key."""

    key: bytes

    def __repr__(self) -> str:
        return "UseKey()"


ToAgent = Connect | Notify | Forget | Query | UseKey


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The process runs. ``error``: why it can ask no side channel; empty when it can."""

    error: str


class AgentReady(msgspec.Struct, frozen=True, array_like=True, tag="agent_ready"):
    """The NIXL agent runs. ``error``: why it does not, and will not; empty when it does."""

    error: str


class Connected(msgspec.Struct, frozen=True, array_like=True, tag="connected"):
    """Answer to ``Connect``; ``error`` is empty when it worked, for so many ranks."""

    engine_id: str
    num_ranks: int
    error: str


class Notified(msgspec.Struct, frozen=True, array_like=True, tag="notified"):
    """Answer to ``Notify``: all is sent. ``error``: some rank was not sent it, and the engine is disconnected."""

    number: int
    error: str


class Queried(msgspec.Struct, frozen=True, array_like=True, tag="queried"):
    """Answer to ``Query``: the facts, or why there are none."""

    number: int
    facts: SideChannelFacts | None
    reason: SideChannelReason | None
    error: str


FromAgent = Started | AgentReady | Connected | Notified | Queried

TO_AGENT: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
FROM_AGENT: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)

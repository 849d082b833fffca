"""The messages between the router and the process with its NIXL agent, in the frames of ``core/process/frames.py``.

Both ends are of one installation, so there is no version on the wire. The agent answers in the order in which it is
asked.
"""

from __future__ import annotations

import msgspec


class Connect(msgspec.Struct, frozen=True, array_like=True, tag="connect"):
    """Have the agent know an engine by the NIXL metadata of its ranks. Answered by one ``Connected``."""

    engine_id: str
    ranks: list[bytes]


class Notify(msgspec.Struct, frozen=True, array_like=True, tag="notify"):
    """Send notifications to every rank of an engine, if it is connected. Answered by one ``Notified``."""

    engine_id: str
    payloads: list[bytes]


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Disconnect an engine. Not answered."""

    engine_id: str


ToAgent = Connect | Notify | Forget


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

    error: str


FromAgent = AgentReady | Connected | Notified

TO_AGENT: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
FROM_AGENT: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)

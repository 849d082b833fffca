"""What a vLLM server's side channel answers, and what is wrong with it, without I/O.

As in vLLM 0.32 (``NixlBaseConnectorScheduler._nixl_handshake_listener``): two frames, both msgpack. The first is a map
with ``compatibility_hash`` and ``agent_metadata_bytes``, and with ``fence`` if the server has loaded Baton's connector;
the second is a float, the time of a clock. The metadata is a map of its own, whose fields differ between versions; only
those that are used are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

#: What decoding bytes of any kind can raise: they are not msgpack, or not UTF-8 in it, or nested without end.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: Characters of a hash or a name that is taken from an answer.
MAX_CHARS = 256


class SideChannelReason(StrEnum):
    """Why a side channel did not say what was asked."""

    NO_ANSWER = "no_answer"
    NOT_VLLM = "not_vllm"
    OTHER_VERSION = "other_version"
    OTHER_ENGINE = "other_engine"
    #: This router has no internal token, with which servers are asked over HTTP.
    CANNOT_ASK = "cannot_ask"


class SideChannelError(Exception):
    """A side channel did not say what was asked. The message is a sentence for people."""

    def __init__(self, reason: SideChannelReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SideChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What rank (0, 0) of a vLLM engine says about the engine.

    A P and a D with different compatibility hashes refuse each other. The hash is about vLLM's version, the model's
    name and shape, and the dtype; the layout and the block size are not in it.
    """

    compatibility_hash: str
    engine_id: str
    #: Whether it checks the fence of what it reads: it has loaded Baton's connector, and has not turned the fence off.
    has_fence: bool = False


class RankAnswer(msgspec.Struct, frozen=True):
    """What one rank answered. ``agent_metadata`` is for NIXL."""

    facts: SideChannelFacts
    agent_metadata: bytes


class _Fence(msgspec.Struct):
    checks: bool


class _Payload(msgspec.Struct):
    compatibility_hash: str
    agent_metadata_bytes: bytes
    fence: _Fence | None = None


class _Metadata(msgspec.Struct):
    engine_id: str
    agent_metadata: bytes


def query(pp_rank: int, tp_rank: int) -> bytes:
    """The question for the metadata of one rank, which has to exist: vLLM's listener dies of any other question."""
    return msgspec.msgpack.encode((b"get_meta_msg", pp_rank, tp_rank))


def parse(place: str, frames: Sequence[bytes]) -> RankAnswer:
    """Read an answer of ``place``, which is ``host:port``. Raises SideChannelError."""
    head = frames[0] if frames else b""
    if not head or not (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF)):  # msgpack's maps
        raise SideChannelError(
            SideChannelReason.NOT_VLLM,
            f"{place} answers, but not as vLLM's side channel does: remote_port is VLLM_NIXL_SIDE_CHANNEL_PORT of vLLM",
        )
    try:
        # Into these fields alone: objects of any kind would take a hundred times the bytes that came.
        payload = msgspec.msgpack.decode(head, type=_Payload)
        metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=_Metadata)
    except _UNDECODABLE as error:
        raise _other_version(place, str(error)) from None
    if len(frames) != 2:
        raise _other_version(place, f"{len(frames)} frames")
    facts = SideChannelFacts(
        compatibility_hash=payload.compatibility_hash[:MAX_CHARS],
        engine_id=metadata.engine_id[:MAX_CHARS],
        has_fence=payload.fence is not None and payload.fence.checks,
    )
    return RankAnswer(facts, metadata.agent_metadata)


def _other_version(place: str, what: str) -> SideChannelError:
    return SideChannelError(
        SideChannelReason.OTHER_VERSION,
        f"the side channel of {place} is of another version of vLLM than 0.32, which Baton knows: {what}",
    )

"""Errors of block transfer.

TransferError
├── NixlError              an error of NIXL, by cause (``nixl_agent`` has the complete mapping)
│   ├── PeerLostError          the peer is dead or the connection to it broke
│   ├── PeerUnknownError       NIXL knows no such agent, or the agent has not registered that memory
│   ├── MisuseError            a wrong call of NIXL, or impossible addresses from a peer
│   ├── UnsupportedError       no transport of this machine supports the operation
│   └── BackendFailedError     the transport failed for another reason
├── PeerBusyError          reads over the former connection to the peer have not ended yet; try again
├── PlanError              the shards of the two engines do not fit together
└── HandshakeError         no handshake with a remote engine; ``reason`` says why

Every message is one line for people.
"""

from __future__ import annotations

from enum import StrEnum

from baton_serve.workers.rank_protocol.errors import MAX_LINE_CHARS, shortened


class TransferError(Exception):
    """Base of all errors of block transfer."""


class NixlError(TransferError):
    """Base of the errors of NIXL."""


class PeerLostError(NixlError):
    """The peer is dead or the connection to it broke. The peer may be added again."""


class PeerUnknownError(NixlError):
    """NIXL knows no such agent, or the agent has not registered that memory."""


class MisuseError(NixlError):
    """NIXL was called wrongly, or with impossible addresses that a peer has sent."""


class UnsupportedError(NixlError):
    """No transport of this machine supports the operation."""


class BackendFailedError(NixlError):
    """The transport failed, and the error does not name the reason."""


class PeerBusyError(TransferError):
    """Reads over the former connection to the peer have not ended yet; the same call will work later."""


class PlanError(TransferError):
    """The shards of the two engines do not fit together; the message names the difference."""


class HandshakeReason(StrEnum):
    """Why there is no handshake with a remote engine."""

    BAD_ADDRESS = "bad_address"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    GARBAGE = "garbage"
    INCOMPATIBLE = "incompatible"
    WRONG_ENGINE = "wrong_engine"
    #: The answer was right, but a local rank could not connect.
    RANK = "rank"
    #: The engine was connected, and has been lost since.
    LOST = "lost"
    #: Reads from the engine were given up and have not ended: NIXL may still write to local blocks.
    STUCK = "stuck"
    #: ``max_engines`` engines are in use already.
    TOO_MANY = "too_many"
    #: The pool disconnected the engine while requests waited for it.
    FORGOTTEN = "forgotten"


class HandshakeError(TransferError):
    """No handshake with a remote engine; another attempt may work. ``message`` becomes one line of bounded length."""

    def __init__(self, reason: HandshakeReason, message: str) -> None:
        self.reason = reason
        self.message = shortened(" ".join(message[: 2 * MAX_LINE_CHARS].split()))
        super().__init__(f"{reason.value}: {self.message}")

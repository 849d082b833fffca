"""Errors of block transfer.

TransferError
├── NixlError              what NIXL raised, sorted by who is to blame (``nixl_port`` has the complete mapping)
│   ├── PeerLostError          the peer is dead or the connection to it broke
│   ├── PeerUnknownError       NIXL knows no such agent, or it has not registered that memory
│   ├── MisuseError            we called NIXL wrongly, or a peer described memory that makes no sense
│   ├── UnsupportedError       no transport here can do it
│   └── BackendFailedError     the transport failed otherwise
├── PeerBusyError          reads from the peer's former connection have not ended yet; try again
├── PlanError              the two engines' shards cannot be paired yet
└── HandshakeError         a remote engine could not be met; ``reason`` says why

Every message is one line for people.
"""

from __future__ import annotations

from enum import StrEnum

#: Characters of a HandshakeError's message. Peers have a say in it, and it goes into logs, answers and load reports.
MAX_MESSAGE_CHARS = 500


class TransferError(Exception):
    """Something about moving blocks."""


class NixlError(TransferError):
    """NIXL said no."""


class PeerLostError(NixlError):
    """The peer is dead or the connection to it broke. It may be added again."""


class PeerUnknownError(NixlError):
    """NIXL knows no such agent, or the agent has not registered that memory."""


class MisuseError(NixlError):
    """We called NIXL wrongly, or a peer described memory that makes no sense."""


class UnsupportedError(NixlError):
    """No transport here can do it."""


class BackendFailedError(NixlError):
    """The transport failed in a way that names nobody."""


class PeerBusyError(TransferError):
    """Reads over the peer's former connection have not ended yet; the same call will work later."""


class PlanError(TransferError):
    """The two engines' shards cannot be paired; the message names what differs."""


class HandshakeReason(StrEnum):
    """Why a remote engine could not be met."""

    BAD_ADDRESS = "bad_address"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    GARBAGE = "garbage"
    INCOMPATIBLE = "incompatible"
    WRONG_ENGINE = "wrong_engine"
    #: The answer was right, but one of our own ranks could not use it.
    RANK = "rank"
    #: It was known, and has been lost since.
    LOST = "lost"
    #: Reads from it were given up and have not ended: NIXL may still write to our blocks.
    STUCK = "stuck"
    #: As many engines as are remembered are all in use.
    TOO_MANY = "too_many"
    FORGOTTEN = "forgotten"


class HandshakeError(TransferError):
    """A remote engine could not be met. Another attempt may work. ``message`` becomes one line of bounded length."""

    def __init__(self, reason: HandshakeReason, message: str) -> None:
        message = " ".join(message[: 2 * MAX_MESSAGE_CHARS].split())
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason
        self.message = message

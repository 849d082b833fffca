"""Bugs of the engine or of a rank; no request can cause one. Each of them ends the engine (``AsyncEngine.dead``)."""

from __future__ import annotations


class EngineFault(Exception):
    """Base of these errors. An operation that raises one has changed nothing."""


class LedgerError(EngineFault):
    """Free + cached + pinned + leased is not the total, or a block has another owner than claimed."""


class OutOfBlocksError(EngineFault):
    """More blocks were allocated than ``num_available`` said."""


class IllegalTransitionError(EngineFault):
    """The event does not exist in the sequence's state."""


class RankProtocolError(EngineFault):
    """A rank sent an unexpected answer, or the ranks disagree."""

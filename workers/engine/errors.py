"""Faults inside the engine. None of them is the caller's doing; any of them ends the engine (see ``engine.dead``).

EngineFault
├── LedgerError            blocks do not add up, or were given back twice
├── OutOfBlocksError       more was allocated than ``num_available`` said
├── IllegalTransitionError the event does not exist in the sequence's state
└── RankProtocolError      a rank answered something it was not asked
"""

from __future__ import annotations


class EngineFault(Exception):
    """A bug of ours or of a rank. The operation that raised it changed nothing."""


class LedgerError(EngineFault):
    """Free + cached + pinned + leased is not the total, or a block has another owner than claimed."""


class OutOfBlocksError(EngineFault):
    """Ask ``num_available`` first."""


class IllegalTransitionError(EngineFault):
    """The event does not exist in the sequence's state."""


class RankProtocolError(EngineFault):
    """A rank answered something it was not asked."""

"""The start parameters of block transfer in a rank."""

from __future__ import annotations

import msgspec


class TransferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ``RankTransfer``."""

    #: True: D uses blocks without comparing their versions, even if P has overwritten them. This exists so that a test
    #: can show why the fence is needed.
    unsafe_disable_fence: bool = False
    #: Bytes posted in one call. Over shared memory NIXL copies inside that call, and other reads, cancels and
    #: notifications have to wait: 1 to 3 ms for 16 MiB.
    piece_bytes: int = 16 * 2**20
    #: Pieces of one read in flight at once, if the transport does not copy inside the call.
    window: int = 4

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
    #: Seconds between two polls for notifications, because NIXL cannot wake a thread. Polling every millisecond costs
    #: 2.9% of one core, every 5 ms about 1%, so after ``quiet_after_s`` without an event the polls are less frequent.
    poll_s: float = 0.001
    quiet_poll_s: float = 0.005
    quiet_after_s: float = 1.0
    #: Longest pause in seconds between two polls of reads in flight. The first pause is 20 microseconds, and each next
    #: pause is twice as long plus 20 microseconds.
    max_backoff_s: float = 500e-6
    #: Seconds that ``close`` waits for reads in flight.
    close_timeout_s: float = 1.0

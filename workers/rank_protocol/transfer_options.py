"""What can be set about block transfer in a rank."""

from __future__ import annotations

import msgspec


class TransferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of ``RankTransfer``."""

    #: False accepts blocks without comparing their versions, so P's overwritten blocks pass for the promised ones.
    #: It exists so that a test can show what the fence is for.
    unsafe_disable_fence: bool = False
    #: Bytes posted at once. Over shared memory NIXL copies inside the posting call, and while it does, no other read,
    #: cancel or notification is served: 16 MiB are 1 to 3 ms there.
    piece_bytes: int = 16 * 2**20
    #: Pieces of one read in flight at once, where the transport does not copy inside the call.
    window: int = 4
    #: Seconds between two looks for notifications: NIXL cannot wake us. A look each millisecond costs 2.9% of one
    #: core, every 5 ms about 1%, so we look often while things happen and less when nothing has for ``quiet_after_s``.
    poll_s: float = 0.001
    quiet_poll_s: float = 0.005
    quiet_after_s: float = 1.0
    #: Longest pause between two looks at reads in flight; it starts at 20 microseconds and doubles.
    max_backoff_s: float = 500e-6
    #: Seconds that ``close`` waits for reads in flight.
    close_timeout_s: float = 1.0

"""The states of a sequence, as a table. An event that is not in the table raises and changes nothing.

Rules
- A sequence waits without blocks, and gets all blocks for the tokens it has at once when it is admitted.
- RUNNING and READING sequences take a seat each (``max_num_seqs``); CLOSING ones only keep their blocks.
- A CONNECTED one whose P can no longer be read from when its turn comes leaves the queue and is CONNECTING again; it
  keeps its place among the others, and holds up nobody meanwhile.
- A PARKED one waits without blocks of its own: the lease holds those that it will take over.
- A read that the fence refused leaves the sequence its blocks: it computes into them what it could not keep.
- A preempted sequence gives up its blocks and computes prompt and outputs again.
- Somebody may still write the blocks of a sequence that is aborted while a step computes it or a read fills it, or
  whose read is given up. It is CLOSING until that has ended; only then do its blocks go back. One that was given up has
  FAILED then: its caller got an error.
"""

from __future__ import annotations

from enum import StrEnum

from workers.engine.errors import IllegalTransitionError


class State(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"
    #: D: the handshake with P is under way.
    CONNECTING = "connecting"
    #: D: P was met; waits for room to read into.
    CONNECTED = "connected"
    #: D, and this engine was its P too: the blocks are here, under a lease. Waits for a seat.
    PARKED = "parked"
    READING = "reading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    CLOSING = "closing"
    # The ends.
    FINISHED = "finished"
    HANDED_OFF = "handed_off"
    ABORTED = "aborted"
    FAILED = "failed"


class Event(StrEnum):
    """What happens to a sequence."""

    CONNECT = "connect"
    #: Its P is stuck, lost or forgotten since: it has to be met again.
    DISCONNECT = "disconnect"
    ADMIT = "admit"
    POST_READ = "post_read"
    READ_DONE = "read_done"
    READ_STALE = "read_stale"
    #: The lease's blocks are the sequence's now.
    TAKE_OVER = "take_over"
    #: There is no such lease any more.
    LOSE = "lose"
    PREEMPT = "preempt"
    FINISH = "finish"
    HAND_OFF = "hand_off"
    FAIL = "fail"
    ABORT = "abort"
    #: Aborted while a step or a read may still write its blocks.
    ABORT_BUSY = "abort_busy"
    #: Its read takes too long, or cannot succeed any more, and may still write its blocks.
    GIVE_UP = "give_up"
    #: That step or read has ended.
    SETTLE = "settle"


TABLE: dict[State, dict[Event, State]] = {
    State.WAITING: {Event.ADMIT: State.RUNNING, Event.ABORT: State.ABORTED},
    State.CONNECTING: {
        Event.CONNECT: State.CONNECTED,
        Event.FAIL: State.FAILED,
        Event.ABORT: State.ABORTED,
    },
    State.CONNECTED: {
        Event.POST_READ: State.READING,
        Event.DISCONNECT: State.CONNECTING,
        Event.ABORT: State.ABORTED,
    },
    State.PARKED: {
        Event.TAKE_OVER: State.RUNNING,
        Event.LOSE: State.WAITING,
        Event.ABORT: State.ABORTED,
    },
    State.READING: {
        Event.READ_DONE: State.RUNNING,
        Event.READ_STALE: State.RUNNING,
        Event.FAIL: State.FAILED,
        Event.GIVE_UP: State.CLOSING,
        Event.ABORT_BUSY: State.CLOSING,
    },
    State.RUNNING: {
        Event.PREEMPT: State.PREEMPTED,
        Event.FINISH: State.FINISHED,
        Event.HAND_OFF: State.HANDED_OFF,
        Event.ABORT: State.ABORTED,
        Event.ABORT_BUSY: State.CLOSING,
    },
    State.PREEMPTED: {Event.ADMIT: State.RUNNING, Event.ABORT: State.ABORTED},
    State.CLOSING: {Event.SETTLE: State.ABORTED, Event.FAIL: State.FAILED},
    State.FINISHED: {},
    State.HANDED_OFF: {},
    State.ABORTED: {},
    State.FAILED: {},
}

#: In the queue, without blocks.
QUEUED = frozenset({State.WAITING, State.CONNECTED, State.PREEMPTED})
#: For a seat, for blocks or for a handshake; without blocks as well.
WAITING = QUEUED | {State.CONNECTING, State.PARKED}
ENDED = frozenset(state for state, events in TABLE.items() if not events)


def next_state(state: State, event: Event) -> State:
    """Where ``event`` leads from ``state``. Raises IllegalTransitionError."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransitionError(f"a sequence that is {state} cannot {event}") from None

"""The states of a sequence, as a table. An event that is not in the table raises and changes nothing.

Rules
- A sequence waits without blocks. When it is admitted, it gets at once all blocks for the tokens that it has.
- RUNNING and READING sequences take a slot each (``max_num_seqs``); CLOSING and FINISHING ones only keep their blocks.
- If a CONNECTED sequence is next to be admitted but its P can no longer be read from, the sequence leaves the queue and
  is CONNECTING again. It keeps its position (priority and age), and does not block the sequences behind it.
- A sequence that is AWAITING_HANDOFF has no blocks: the lease holds the blocks that the sequence will take over.
- When the fence refuses a read, the sequence keeps its blocks, and computes into them what it could not read.
- A preempted sequence releases its blocks and computes prompt and outputs again.
- A step or a read may still write the blocks of a sequence that was aborted, whose read was given up, or whose output
  cannot go on. The sequence is CLOSING until that step or read has ended; only then are its blocks freed. It then ends
  as ABORTED, or as FAILED if it was given up, because its caller got an error.
- A sequence may end with a step while the ranks have its next one already. It is FINISHING until that step has ended as
  well: it takes no slot, its caller has all of its tokens, and only then are its blocks freed.
"""

from __future__ import annotations

from enum import StrEnum

from baton_serve.workers.engine.errors import IllegalTransitionError


class State(StrEnum):
    """The state of a sequence."""

    WAITING = "waiting"
    #: On D: the handshake with P is under way.
    CONNECTING = "connecting"
    #: On D: the handshake is done; the sequence waits for a slot and for blocks to read into.
    CONNECTED = "connected"
    #: On D, if this engine was also P: a lease here holds the blocks; the sequence waits for a slot.
    AWAITING_HANDOFF = "awaiting_handoff"
    READING = "reading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    CLOSING = "closing"
    FINISHING = "finishing"
    # States of a sequence that has ended.
    FINISHED = "finished"
    HANDED_OFF = "handed_off"
    ABORTED = "aborted"
    FAILED = "failed"


class Event(StrEnum):
    """What happens to a sequence."""

    CONNECT = "connect"
    #: A read from the sequence's P is stuck, or P was lost or forgotten: a new handshake is needed.
    DISCONNECT = "disconnect"
    ADMIT = "admit"
    POST_READ = "post_read"
    READ_DONE = "read_done"
    READ_STALE = "read_stale"
    #: The sequence has taken over the lease's blocks.
    TAKE_OVER = "take_over"
    #: The lease has ended, or holds something else than the hand-off says.
    LOSE = "lose"
    PREEMPT = "preempt"
    FINISH = "finish"
    #: It has all of its tokens, while a step that was sent ahead may still write its blocks.
    FINISH_BUSY = "finish_busy"
    HAND_OFF = "hand_off"
    FAIL = "fail"
    ABORT = "abort"
    #: Aborted while a step or a read may still write its blocks.
    ABORT_BUSY = "abort_busy"
    #: The read takes too long, or cannot succeed any more, or the output cannot go on, and a read or a step may still
    #: write the sequence's blocks.
    GIVE_UP = "give_up"
    #: The steps or the read that a CLOSING or FINISHING sequence waited for have ended.
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
    State.AWAITING_HANDOFF: {
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
        Event.FINISH_BUSY: State.FINISHING,
        Event.HAND_OFF: State.HANDED_OFF,
        Event.FAIL: State.FAILED,
        Event.GIVE_UP: State.CLOSING,
        Event.ABORT: State.ABORTED,
        Event.ABORT_BUSY: State.CLOSING,
    },
    State.PREEMPTED: {Event.ADMIT: State.RUNNING, Event.ABORT: State.ABORTED},
    State.CLOSING: {Event.SETTLE: State.ABORTED, Event.FAIL: State.FAILED},
    State.FINISHING: {Event.SETTLE: State.FINISHED},
    State.FINISHED: {},
    State.HANDED_OFF: {},
    State.ABORTED: {},
    State.FAILED: {},
}

#: States of the sequences in the queue; they have no blocks.
QUEUED = frozenset({State.WAITING, State.CONNECTED, State.PREEMPTED})
#: States of the sequences that wait for a slot, for blocks or for a handshake; they have no blocks.
WAITING = QUEUED | {State.CONNECTING, State.AWAITING_HANDOFF}
ENDED = frozenset(state for state, events in TABLE.items() if not events)


def next_state(state: State, event: Event) -> State:
    """The state after ``event``. Raises IllegalTransitionError."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransitionError(f"a sequence that is {state} cannot {event}") from None

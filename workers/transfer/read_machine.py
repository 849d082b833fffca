"""One block read on D, as a table: no I/O, no time.

A read is posted in pieces, a few at once; when all have arrived the versions are read and compared.

    state       event       next
    READING     ARRIVED     CHECKING    all the data is here
    READING     BROKE       FAILING     a piece ended with an error, or could not be posted
    READING     CANCEL      CANCELLING
    CHECKING    EQUAL       DONE
    CHECKING    UNEQUAL     STALE
    CHECKING    BROKE       FAILING
    CHECKING    CANCEL      CANCELLING
    FAILING     DRAINED     FAILED      nothing is in flight any more
    CANCELLING  DRAINED     CANCELLED

NIXL may write into the local blocks until it says that a posted transfer has ended, also when nobody wants the data
any more, so FAILING and CANCELLING last until then. Nothing else leaves them, and a cancelled read is never DONE.
A second cancel, and one that comes after the end, change nothing.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from workers.transfer.errors import TransferError


class ReadState(StrEnum):
    """Where a read is. The last four are ends; their values are the ``outcome`` of a ``ReadResult``."""

    READING = "reading"
    CHECKING = "checking"
    FAILING = "failing"
    CANCELLING = "cancelling"
    DONE = "done"
    STALE = "stale"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReadEvent(Enum):
    """What moves a read on."""

    ARRIVED = auto()
    EQUAL = auto()
    UNEQUAL = auto()
    BROKE = auto()
    CANCEL = auto()
    DRAINED = auto()


_S, _E = ReadState, ReadEvent
TABLE: dict[tuple[ReadState, ReadEvent], ReadState] = {
    (_S.READING, _E.ARRIVED): _S.CHECKING,
    (_S.READING, _E.BROKE): _S.FAILING,
    (_S.READING, _E.CANCEL): _S.CANCELLING,
    (_S.CHECKING, _E.EQUAL): _S.DONE,
    (_S.CHECKING, _E.UNEQUAL): _S.STALE,
    (_S.CHECKING, _E.BROKE): _S.FAILING,
    (_S.CHECKING, _E.CANCEL): _S.CANCELLING,
    (_S.FAILING, _E.BROKE): _S.FAILING,
    (_S.FAILING, _E.CANCEL): _S.FAILING,
    (_S.FAILING, _E.DRAINED): _S.FAILED,
    (_S.CANCELLING, _E.BROKE): _S.CANCELLING,
    (_S.CANCELLING, _E.CANCEL): _S.CANCELLING,
    (_S.CANCELLING, _E.DRAINED): _S.CANCELLED,
}
ENDS = frozenset({_S.DONE, _S.STALE, _S.FAILED, _S.CANCELLED})
TABLE |= {(end, _E.CANCEL): end for end in ENDS}

#: What ``next_post`` answers when the versions are to be read.
VERSIONS = -1


class IllegalReadEventError(TransferError):
    """An event that cannot happen in this state: a bug of the caller. The state is unchanged."""


class ReadMachine:
    """Decides what to post next and when the read is over.

    ``num_pieces`` of data, at most ``window`` of them in flight at once. Without pieces the read is done at once.
    ``fence`` False accepts the data without looking at the versions.
    """

    def __init__(self, num_pieces: int, *, window: int, fence: bool = True) -> None:
        self.state = ReadState.READING if num_pieces else ReadState.DONE
        self.error = ""
        self._num_pieces = num_pieces
        self._num_posted = 0
        self._num_in_flight = 0
        self._window = window
        self._fence = fence
        self._versions_posted = False

    def __repr__(self) -> str:
        posted = f"{self._num_posted}/{self._num_pieces} posted, {self._num_in_flight} in flight"
        return f"<ReadMachine {self.state.value}: {posted}>"

    @property
    def ended(self) -> bool:
        """Nothing will be written to the local blocks any more."""
        return self.state in ENDS

    @property
    def tells_peer(self) -> bool:
        """P may let go. Not after ``failed`` or ``cancelled``: then another D may still read the same blocks."""
        return self.state in {ReadState.DONE, ReadState.STALE}

    def next_post(self) -> int | None:
        """The piece to post now (or ``VERSIONS``), counted as in flight from here on; None when there is none."""
        if self.state is ReadState.CHECKING and not self._versions_posted:
            self._versions_posted = True
            self._num_in_flight += 1
            return VERSIONS
        left = self._num_posted < self._num_pieces and self._num_in_flight < self._window
        if self.state is not ReadState.READING or not left:
            return None
        self._num_in_flight += 1
        self._num_posted += 1
        return self._num_posted - 1

    def arrived(self) -> None:
        """NIXL has finished one piece of data."""
        self._land()
        if self.state is ReadState.READING and not self._num_in_flight and self._num_posted == self._num_pieces:
            self._fire(ReadEvent.ARRIVED)
            if not self._fence:
                self._fire(ReadEvent.EQUAL)
        self._drain()

    def compared(self, *, equal: bool) -> None:
        """NIXL has finished reading the versions, and this is what they say."""
        if self.state is ReadState.CHECKING:
            if not self._versions_posted:
                raise IllegalReadEventError(f"versions compared before they were read: {self!r}")
            self._land()
            self._fire(ReadEvent.EQUAL if equal else ReadEvent.UNEQUAL)
            return
        self._land()
        self._drain()

    def broke(self, error: str) -> None:
        """A transfer that ``next_post`` named has ended with an error, or could not be posted."""
        if not self._num_in_flight:
            raise IllegalReadEventError(f"nothing is in flight that could break: {self!r}")
        self._fire(ReadEvent.BROKE)
        self._num_in_flight -= 1
        self.error = self.error or error
        self._drain()

    def cancel(self) -> None:
        """Nobody wants the data any more."""
        self._fire(ReadEvent.CANCEL)
        self._drain()

    def _land(self) -> None:
        if not self._num_in_flight:
            raise IllegalReadEventError(f"nothing is in flight that could end: {self!r}")
        self._num_in_flight -= 1

    def _drain(self) -> None:
        if self.state in {ReadState.FAILING, ReadState.CANCELLING} and not self._num_in_flight:
            self._fire(ReadEvent.DRAINED)

    def _fire(self, event: ReadEvent) -> None:
        following = TABLE.get((self.state, event))
        if following is None:
            raise IllegalReadEventError(f"{event.name} cannot happen: {self!r}")
        self.state = following

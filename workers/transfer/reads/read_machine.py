"""The state machine of one block read on D: no I/O, no time.

A read is posted in pieces, a few at once. When all pieces of all remote ranks have arrived, the version tables of these
ranks are read at once and compared.

    state       event       next
    READING     ARRIVED     CHECKING    all data has arrived
    READING     BROKE       FAILING     a piece ended with an error, or could not be posted
    READING     CANCEL      CANCELLING
    CHECKING    KEPT        DONE        all tables are as promised
    CHECKING    OVERWRITTEN STALE       all tables were compared, and at least one is not as promised
    CHECKING    BROKE       FAILING
    CHECKING    CANCEL      CANCELLING
    FAILING     DRAINED     FAILED      nothing is in flight any more
    CANCELLING  DRAINED     CANCELLED

NIXL may write into the local blocks until every posted transfer has ended, even if the data is not needed any more.
So the states FAILING and CANCELLING last until then, whatever happens, and a cancelled read is never DONE. A second
cancel, or one after the end, changes nothing.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import NamedTuple

from baton_serve.workers.rank_protocol.transfer_errors import TransferError


class ReadState(StrEnum):
    """The state of a read. The last four are ends; their values are the ``outcome`` of a ``ReadResult``."""

    READING = "reading"
    CHECKING = "checking"
    FAILING = "failing"
    CANCELLING = "cancelling"
    DONE = "done"
    STALE = "stale"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReadEvent(Enum):
    """What changes the state of a read."""

    ARRIVED = auto()
    KEPT = auto()
    OVERWRITTEN = auto()
    BROKE = auto()
    CANCEL = auto()
    DRAINED = auto()


_S, _E = ReadState, ReadEvent
TABLE: dict[tuple[ReadState, ReadEvent], ReadState] = {
    (_S.READING, _E.ARRIVED): _S.CHECKING,
    (_S.READING, _E.BROKE): _S.FAILING,
    (_S.READING, _E.CANCEL): _S.CANCELLING,
    (_S.CHECKING, _E.KEPT): _S.DONE,
    (_S.CHECKING, _E.OVERWRITTEN): _S.STALE,
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


class PostKind(Enum):
    """What a transfer reads."""

    DATA = auto()
    VERSIONS = auto()


class Post(NamedTuple):
    """A transfer to post: the number of a piece of data, or of a version table."""

    kind: PostKind
    number: int


class IllegalReadEventError(TransferError):
    """An event that is impossible in this state: a bug of the caller. The state is unchanged."""


class ReadMachine:
    """Decides what to post next, and when the read has ended.

    First come ``num_pieces`` pieces of data, at most ``window`` in flight at once, then ``num_tables`` version tables.
    Without pieces the read is done at once. Without tables the data is accepted unchecked.
    """

    def __init__(self, num_pieces: int, *, num_tables: int, window: int) -> None:
        self.state = ReadState.READING if num_pieces else ReadState.DONE
        self.error = ""
        self._num_pieces = num_pieces
        self._num_tables = num_tables
        #: Pieces and then tables.
        self._num_posted = 0
        self._num_in_flight = 0
        self._window = window
        self._all_kept = True

    def __repr__(self) -> str:
        num_posts = self._num_pieces + self._num_tables
        posted = f"{self._num_posted}/{num_posts} posted, {self._num_in_flight} in flight"
        return f"<ReadMachine {self.state.value}: {posted}>"

    @property
    def ended(self) -> bool:
        """Nothing will be written to the local blocks any more."""
        return self.state in ENDS

    @property
    def tells_peer(self) -> bool:
        """P is notified, and may free the blocks. Not after FAILED or CANCELLED: another D may still read them."""
        return self.state in {ReadState.DONE, ReadState.STALE}

    def next_post(self) -> Post | None:
        """What to post now, which counts as in flight from then on; None if there is nothing to post."""
        match self.state:
            case ReadState.READING if self._num_in_flight < self._window:
                post = Post(PostKind.DATA, self._num_posted)
                left = self._num_pieces - self._num_posted
            case ReadState.CHECKING:
                post = Post(PostKind.VERSIONS, self._num_posted - self._num_pieces)
                left = self._num_pieces + self._num_tables - self._num_posted
            case _:
                return None
        if not left:
            return None
        self._num_in_flight += 1
        self._num_posted += 1
        return post

    def arrived(self) -> None:
        """NIXL has finished one piece of data."""
        if self.state is ReadState.CHECKING:
            raise IllegalReadEventError(f"all data has arrived already: {self!r}")
        self._land()
        if self.state is ReadState.READING and not self._num_in_flight and self._num_posted == self._num_pieces:
            self._fire(ReadEvent.ARRIVED)
            if not self._num_tables:
                self._fire(ReadEvent.KEPT)
        self._drain()

    def compared(self, *, kept: bool) -> None:
        """NIXL has finished reading one version table; ``kept``: it is as promised."""
        if self.state is ReadState.READING:
            raise IllegalReadEventError(f"versions compared before they were read: {self!r}")
        self._land()
        self._all_kept &= kept
        all_posted = self._num_posted == self._num_pieces + self._num_tables
        if self.state is ReadState.CHECKING and not self._num_in_flight and all_posted:
            self._fire(ReadEvent.KEPT if self._all_kept else ReadEvent.OVERWRITTEN)
        self._drain()

    def broke(self, error: str) -> None:
        """A transfer of ``next_post`` has ended with an error, or could not be posted."""
        if not self._num_in_flight:
            raise IllegalReadEventError(f"nothing is in flight that could break: {self!r}")
        self._fire(ReadEvent.BROKE)
        self._num_in_flight -= 1
        self.error = self.error or error
        self._drain()

    def cancel(self) -> None:
        """The data is not needed any more."""
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

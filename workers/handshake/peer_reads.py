"""Which reads from remote engines are in flight, and which of them were given up. Pure."""

from __future__ import annotations


class PeerReads:
    """Every read that was sent to the ranks, until it has ended on all of them.

    A read that was given up and has not ended is *stuck*: NIXL may still write to its blocks, and the engine, which has
    not answered this read, will probably not answer the next one.
    """

    def __init__(self) -> None:
        #: Engine ids by read id.
        self._in_flight: dict[int, str] = {}
        self._stuck: set[int] = set()

    @property
    def num_stuck(self) -> int:
        return len(self._stuck)

    def in_flight(self, engine_id: str) -> int:
        """The number of reads in flight from this engine, including stuck ones."""
        return list(self._in_flight.values()).count(engine_id)

    def stuck(self, engine_id: str) -> int:
        return sum(self._in_flight[read_id] == engine_id for read_id in self._stuck)

    def start(self, engine_id: str, read_id: int) -> None:
        self._in_flight[read_id] = engine_id

    def give_up(self, read_id: int) -> None:
        """Mark the read as stuck. Does nothing if it has ended already."""
        if read_id in self._in_flight:
            self._stuck.add(read_id)

    def end(self, read_id: int) -> None:
        """Remove a read, after every rank has reported its end, so that nothing is written any more."""
        self._in_flight.pop(read_id, None)
        self._stuck.discard(read_id)

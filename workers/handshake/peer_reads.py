"""Which reads from remote engines are in flight, and which of them were given up. Pure."""

from __future__ import annotations


class PeerReads:
    """Every read that was sent to the ranks, until it has ended on all of them.

    A read that was given up and has not ended is *stuck*: NIXL may still write to its blocks, and the engine, which has
    not answered this read, will probably not answer the next one.
    """

    def __init__(self) -> None:
        self._in_flight: dict[str, set[int]] = {}
        self._stuck: dict[str, set[int]] = {}

    def __repr__(self) -> str:
        return f"<PeerReads {self.num_in_flight} in flight, {self.num_stuck} of them stuck>"

    @property
    def num_in_flight(self) -> int:
        """The number of reads in flight from all engines, including stuck ones."""
        return sum(map(len, self._in_flight.values()))

    @property
    def num_stuck(self) -> int:
        """The number of stuck reads from all engines."""
        return sum(map(len, self._stuck.values()))

    def in_flight(self, engine_id: str) -> int:
        """The number of reads in flight from this engine, including stuck ones."""
        return len(self._in_flight.get(engine_id, ()))

    def stuck(self, engine_id: str) -> int:
        """The number of stuck reads from this engine."""
        return len(self._stuck.get(engine_id, ()))

    def start(self, engine_id: str, read_id: int) -> None:
        """Add a read that was sent to the ranks."""
        self._in_flight.setdefault(engine_id, set()).add(read_id)

    def give_up(self, engine_id: str, read_id: int) -> None:
        """Mark the read as stuck. Does nothing if it has ended already."""
        if read_id in self._in_flight.get(engine_id, ()):
            self._stuck.setdefault(engine_id, set()).add(read_id)

    def end(self, engine_id: str, read_id: int) -> None:
        """Remove a read, after every rank has reported its end, so that nothing is written any more."""
        for reads in (self._in_flight, self._stuck):
            if engine_id in reads:
                reads[engine_id].discard(read_id)
                if not reads[engine_id]:
                    del reads[engine_id]

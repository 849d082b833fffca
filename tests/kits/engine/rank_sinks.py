"""What is on both sides of ``RankFacade``: ranks that are written to, a pool and an engine that are told."""

from __future__ import annotations

from baton_serve.core.protocol.steps import Connected, ToRank
from baton_serve.workers.engine.ports import EngineEvent
from baton_serve.workers.rank_group.rank_facade import RankFacade


class KeptPeers:
    """A ``PeerTracker``: writes down, and notices what does not add up."""

    def __init__(self) -> None:
        #: Engine ids by read id.
        self.reading: dict[int, str] = {}
        self.given_up: list[int] = []
        self.failed: list[str] = []
        self.connected: list[tuple[int, Connected]] = []

    def on_connected(self, rank: int, message: Connected, /) -> None:
        self.connected.append((rank, message))

    def read_started(self, engine_id: str, read_id: int, /) -> None:
        assert read_id not in self.reading, "started twice"
        self.reading[read_id] = engine_id

    def read_given_up(self, read_id: int, /) -> None:
        assert read_id in self.reading, "given up after its end"
        assert read_id not in self.given_up, "given up twice"
        self.given_up.append(read_id)

    def read_ended(self, engine_id: str, read_id: int, /, *, failed: bool) -> None:
        assert self.reading.pop(read_id) == engine_id
        if failed:
            self.failed.append(engine_id)


class Desk:
    """A ``RankFacade`` between lists."""

    def __init__(self, num_ranks: int) -> None:
        self.sent: list[ToRank] = []
        self.heard: list[EngineEvent] = []
        self.peers = KeptPeers()
        self.traffic = RankFacade(self.sent.append, self.peers, num_ranks)
        self.traffic.on_event = self.heard.append

    def take(self) -> list[EngineEvent]:
        """What the engine has heard since."""
        heard = list(self.heard)
        self.heard.clear()
        return heard

"""Asks the other routers for their shares, only while a page is watching."""

from __future__ import annotations

import asyncio

from baton_serve.router.dashboard.history import NUM_STEPS
from baton_serve.router.dashboard.merged_history import MergedHistory, position
from baton_serve.router.dashboard.recorder import HistoryRecorder
from baton_serve.router.dashboard.schema import LiveRouter
from baton_serve.router.dashboard.share import RouterShare
from baton_serve.router.peers.asking import DecodedAnswers, read
from baton_serve.router.peers.port import PeerRouters

#: Path on the internal port at which a router answers with its share.
PATH = "/internal/live"
#: Steps asked for if the last round was less than ``FRESH_S`` seconds ago; else, or with a new router, all are.
NUM_NEW_STEPS = 4
FRESH_S = 5.0


class FanOut:
    """The newest answer of each other router. One round of calls at a time; it lasts as long as the slowest router."""

    def __init__(self, peers: PeerRouters, recorder: HistoryRecorder) -> None:
        self._peers = peers
        self._recorder = recorder
        self.history = MergedHistory()
        self._heard: DecodedAnswers[RouterShare] = DecodedAnswers({}, {})
        self._round: asyncio.Task[None] | None = None
        self._asked_s = -FRESH_S

    def refresh(self) -> None:
        """Ask again, unless the last round is under way.

        The answers are shown when they have come; no snapshot waits for them.
        """
        known = {record.router_id for record in self._peers}
        if (known or self._heard.answers) and (self._round is None or self._round.done()):
            now_s = self._recorder.now_s
            is_fresh = now_s - self._asked_s < FRESH_S and known <= self._heard.answers.keys()
            self._asked_s = now_s
            self._round = asyncio.get_running_loop().create_task(self._ask(NUM_NEW_STEPS if is_fresh else NUM_STEPS))

    async def _ask(self, num_steps: int) -> None:
        heard = read(RouterShare, await self._peers.gather("GET", f"{PATH}?num_steps={num_steps}"))
        for router_id, share in heard.answers.items():
            self._note(router_id, share)
        self._heard = heard

    def _note(self, router_id: str, share: RouterShare) -> None:
        own = self._recorder.history
        if share.bounds_s == own.bounds:  # other versions may have other bounds; their histograms cannot be added
            here = position(own.num_steps, own.age_s(self._recorder.now_s))
            self.history.take(router_id, share.steps, share.position, here)

    def shares(self) -> list[RouterShare]:
        """The shares of the routers that answered the last round."""
        return [share for _, share in sorted(self._heard.answers.items())]

    def routers(self, num_own: int) -> list[LiveRouter]:
        """This router, with ``num_own`` live requests, and the others, whether they answer or not."""
        rows = [LiveRouter(self._peers.router_id, None, is_this=True, error=None, num_requests=num_own)]
        for record in self._peers:
            share, error = self._heard.answers.get(record.router_id), self._heard.errors.get(record.router_id)
            num_requests = None if share is None else sum(share.counts.values())
            rows.append(LiveRouter(record.router_id, record.url, False, error, num_requests))
        return rows

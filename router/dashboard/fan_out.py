"""What the other routers show, asked for only while somebody watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from router.dashboard.history import NUM_STEPS
from router.dashboard.merged_history import MergedHistory, position
from router.dashboard.schema import LiveRouter
from router.dashboard.share import Part

if TYPE_CHECKING:
    from router.dashboard.recorder import Recorder
    from router.peers.port import PeerAnswer
    from router.services import Services

#: Where a router tells its share; on the internal port.
PATH = "/internal/live"
#: Steps asked for while answers come at least every ``FRESH_S`` seconds; else, and from routers that are new, all.
NUM_NEW_STEPS = 4
FRESH_S = 5.0

_decoder = msgspec.json.Decoder(Part)


class Others:
    """The newest answer of each other router. One round of questions at a time; it takes as long as the slowest."""

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self._recorder = recorder
        self.history = MergedHistory()
        self._parts: dict[str, Part] = {}
        self._errors: dict[str, str] = {}
        self._round: asyncio.Task[None] | None = None
        self._asked_s = -FRESH_S

    def refresh(self) -> None:
        """Ask again, unless the last round is not over. Nobody waits for the answers: they are shown when they come."""
        known = {record.router_id for record in self._services.peers}
        if (known or self._parts) and (self._round is None or self._round.done()):
            now_s = self._recorder.now_s
            is_fresh = now_s - self._asked_s < FRESH_S and known <= self._parts.keys()
            self._asked_s = now_s
            self._round = asyncio.get_running_loop().create_task(self._ask(NUM_NEW_STEPS if is_fresh else NUM_STEPS))

    async def _ask(self, num_steps: int) -> None:
        answers = await self._services.peers.gather("GET", f"{PATH}?num_steps={num_steps}")
        parts, errors = dict[str, Part](), dict[str, str]()
        for answer in answers:
            part = _read(answer)
            if isinstance(part, Part):
                parts[answer.router_id] = part
                self._note(answer.router_id, part)
            else:
                errors[answer.router_id] = part
        self._parts, self._errors = parts, errors

    def _note(self, router_id: str, part: Part) -> None:
        own = self._recorder.history
        if part.bounds_s == own.bounds:  # a router of a neighbouring version may measure otherwise
            here = position(own.num_steps, own.age_s(self._recorder.now_s))
            self.history.take(router_id, part.steps, part.position, here)

    def parts(self) -> list[Part]:
        """What those said that answered last time."""
        return [part for _, part in sorted(self._parts.items())]

    def routers(self, num_own: int) -> list[LiveRouter]:
        """This router, with ``num_own`` live requests, and the others, whether they answer or not."""
        rows = [LiveRouter(self._services.router_id, None, is_this=True, error=None, num_requests=num_own)]
        for record in self._services.peers:
            part, error = self._parts.get(record.router_id), self._errors.get(record.router_id)
            num_requests = None if part is None else sum(part.counts.values())
            rows.append(LiveRouter(record.router_id, record.url, False, error, num_requests))
        return rows


def _read(answer: PeerAnswer) -> Part | str:
    """What it said, or one line on why that is of no use."""
    if not answer.ok:
        return answer.error or f"HTTP {answer.status}"
    try:
        return _decoder.decode(answer.body)
    except (ValueError, RecursionError):
        return "its version has another live view"

"""How a rank of D checks the fence once it has read the blocks of a hand-off."""

from __future__ import annotations

import contextlib
import enum
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.vllm.fence.tables import OWN_SIDE, prepare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.vllm.fence.promises import Promise
    from workers.vllm.fence.tables import Agent, Tables
    from workers.vllm.fence.words import Words

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: Polls of the checks under way before they wait for the next step: a word comes within microseconds, while a step of
#: a D that decodes takes milliseconds.
NUM_POLLS = 64


class Verdict(enum.StrEnum):
    """What became of the check of one hand-off."""

    KEPT = "kept"
    #: P has ended the hand-off. Its blocks may belong to another prompt by now, or may not: the word does not tell.
    STALE = "stale"
    #: The hand-off came without a promise that fits P's tables.
    UNPROMISED = "unpromised"
    #: The words could not be read.
    FAILED = "failed"


@dataclass
class _Source:
    """What is known of a hand-off while its blocks are read: the promise, and which ranks they are read from."""

    promise: Promise | None
    engine_id: str = ""
    ranks: list[int] = field(default_factory=list)


@dataclass
class _Check:
    """The check of one hand-off. ``sides``: the tables of the ranks that were read from."""

    promise: Promise
    sides: list[int]
    landings: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    failed: bool = False


class FenceReads:
    """The hand-offs that one rank reads, and their checks. ``errors``: what NIXL raises.

    A read of NIXL's may still write into its landing until its handle could be released, so until then the landing is
    not used again.
    """

    def __init__(self, agent: Agent, words: Words, tables: Tables, errors: tuple[type[Exception], ...]) -> None:
        self._agent = agent
        self._words = words
        self._tables = tables
        self._errors = errors
        self._own = prepare(agent, OWN_SIDE, words.address, len(words.array))
        self._sources: dict[str, _Source] = {}
        self._checks: dict[str, _Check] = {}

    def expect(self, request_id: str, promise: Promise | None) -> None:
        """The request's blocks will be read, and were handed off with this promise."""
        self._sources[request_id] = _Source(promise)

    def reads_from(self, request_id: str, engine_id: str, rank: int) -> None:
        """Blocks of an expected request are being read from this rank, whose engine has a table."""
        source = self._sources[request_id]
        source.engine_id = engine_id
        source.ranks.append(rank)

    def forget(self, request_id: str) -> None:
        """The request is not read any more. Does nothing for one that was not expected."""
        self._sources.pop(request_id, None)

    def settle(self, request_ids: Iterable[str]) -> dict[str, Verdict | None]:
        """Begin or go on to check requests whose blocks have all been read. None: ask again in the next step.

        A request that was read from no engine with a table has nothing to check, and is left out.
        """
        verdicts: dict[str, Verdict | None] = {}
        for request_id in request_ids:
            if request_id in self._checks:
                verdicts[request_id] = None
            elif (source := self._sources.get(request_id)) is not None and source.ranks:
                verdicts[request_id] = self._begin(request_id, source)
        waiting = [request_id for request_id, verdict in verdicts.items() if verdict is None]
        for _ in range(NUM_POLLS):
            if not waiting:
                break
            verdicts |= {request_id: self._poll(request_id) for request_id in waiting}
            waiting = [request_id for request_id in waiting if verdicts[request_id] is None]
        return verdicts

    def close(self) -> None:
        """Release everything that can be released."""
        for check in self._checks.values():
            for handle in check.handles:
                with contextlib.suppress(*self._errors):
                    self._agent.release_xfer_handle(handle)
        self._checks.clear()
        with contextlib.suppress(*self._errors):
            self._agent.release_dlist_handle(self._own.handle)

    def _begin(self, request_id: str, source: _Source) -> Verdict | None:
        if source.promise is None:
            return Verdict.UNPROMISED
        sides = [self._tables.side(source.engine_id, rank, source.promise.slot) for rank in source.ranks]
        known = [side for side in sides if side is not None]
        if len(known) < len(sides):
            return Verdict.UNPROMISED
        self._checks[request_id] = check = _Check(source.promise, known)
        self._post(check)
        return None

    def _post(self, check: _Check) -> None:
        """Begin the reads, if there are landings for them. One that cannot be begun fails the check."""
        landings = self._words.take_landings(len(check.sides))
        if landings is None:
            return
        check.landings = landings
        for side, landing in zip(check.sides, landings, strict=True):
            try:
                handle = self._agent.make_prepped_xfer("READ", self._own.handle, [landing], side, [check.promise.slot])
                check.handles.append(handle)
                self._agent.transfer(handle)
            except self._errors as error:
                check.failed = True
                logger.warning("The fence of a hand-off cannot be read: %s", error)

    def _poll(self, request_id: str) -> Verdict | None:
        check = self._checks[request_id]
        if not check.landings:
            self._post(check)
            return None
        check.handles = [handle for handle in check.handles if not self._is_over(check, handle)]
        if check.handles:
            return None
        words = self._words.array[check.landings]
        self._words.free_landings(check.landings)
        del self._checks[request_id]
        if check.failed:
            return Verdict.FAILED
        return Verdict.KEPT if (words == check.promise.word).all() else Verdict.STALE

    def _is_over(self, check: _Check, handle: int) -> bool:
        """Whether nothing is read any more, and the handle is released."""
        try:
            state = self._agent.check_xfer_state(handle)
        except self._errors as error:
            state = "ERR"
            logger.warning("The fence of a hand-off could not be read: %s", error)
        if state == "PROC":
            return False
        check.failed |= state != "DONE"
        try:
            self._agent.release_xfer_handle(handle)
        except self._errors:
            return False
        return True

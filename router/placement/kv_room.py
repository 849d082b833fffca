"""The worker with the most cache left for a request's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from router.placement.least_loaded import LeastLoaded, share
from router.placement.ports import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.protocol.worker import WorkerLoad
    from router.placement.ports import OnGone
    from router.placement.prompt import Prefilled
    from router.pool import Worker

#: Expected of a request that sets no limit. It only counts until the next load report, which knows better.
DEFAULT_NEW_TOKENS = 256


class _Promised(msgspec.Struct):
    """Blocks that requests sent since a load report will take."""

    load: WorkerLoad
    num_blocks: int = 0


class KvRoom:
    """For decode. Room is free and cached blocks as last reported, less what this router has sent there since.

    Counted in tokens, as workers' blocks may differ in size. Workers that do not report take part only if none does.
    """

    def __init__(self, on_gone: OnGone) -> None:
        self._promised: dict[str, _Promised] = {}
        self._least_loaded = LeastLoaded()
        on_gone.append(self._forget)

    def pick(self, workers: Sequence[Worker], prefilled: Prefilled) -> Worker:
        """See ``PickDecode``. Where nobody has the room, it is still the one with the most: it waits least there."""
        reporting = [worker for worker in workers if worker.block_size and not worker.load_is_old]
        if not reporting:
            return self._least_loaded.pick(workers, prefilled)
        worker = max(reporting, key=lambda worker: (self._room_tokens(worker), -share(worker)))
        promised = self._promised_by(worker)
        promised.num_blocks += -(-_expected_tokens(prefilled) // worker.block_size)
        return worker

    def _room_tokens(self, worker: Worker) -> int:
        load = worker.load
        num_blocks = load.free_blocks + load.cached_blocks - self._promised_by(worker).num_blocks
        return num_blocks * worker.block_size

    def _promised_by(self, worker: Worker) -> _Promised:
        key = key_of(worker)
        promised = self._promised.get(key)
        if promised is None or promised.load is not worker.load:  # the new report has them in it
            promised = self._promised[key] = _Promised(worker.load)
        return promised

    def _forget(self, engine_id: str) -> None:
        self._promised.pop(engine_id, None)


def _expected_tokens(prefilled: Prefilled) -> int:
    """Of the request when it ends."""
    new = prefilled.prompt.max_new_tokens
    return (prefilled.num_tokens or prefilled.prompt.num_tokens) + (DEFAULT_NEW_TOKENS if new is None else new)

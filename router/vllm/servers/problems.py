"""What is wrong with each vLLM server: ``Worker.problem``, a sentence for people, and a line in the log per change."""

from __future__ import annotations

import logging
from enum import IntEnum

from baton_serve.router.pool import Worker

log = logging.getLogger("baton.router")


class About(IntEnum):
    """What a sentence is about; the first one that there is is shown."""

    NAME = 0
    SERVER = 1
    CONNECTOR = 2
    SIDE_CHANNEL = 3
    PAIRS = 4
    WINDOW = 5
    PAGE = 6


class Problems:
    """The sentences of all servers."""

    def __init__(self) -> None:
        self._texts: dict[Worker, dict[About, str]] = {}

    def note(self, worker: Worker, about: About, text: str) -> None:
        """Note what is wrong; an empty ``text``: nothing is any more."""
        texts = self._texts.setdefault(worker, {})
        texts[about] = text
        shown = next((texts[key] for key in sorted(texts) if texts[key]), "")
        if shown == worker.problem:
            return
        worker.problem = shown
        if shown:
            log.warning("worker %s: %s", worker.worker_id, shown)
        else:
            log.info("worker %s: nothing is wrong with it any more", worker.worker_id)

    def forget(self, worker: Worker) -> None:
        """Forget a worker that left."""
        self._texts.pop(worker, None)

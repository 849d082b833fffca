"""A read of words that is under way."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton_serve.workers.vllm.fence.tables import Agent

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only


class Transfer:
    """A transfer that NIXL has made. ``errors``: what NIXL raises.

    NIXL may still write into its landings until its handle could be released, so until then they are not used again.
    """

    def __init__(self, agent: Agent, handle: int, errors: tuple[type[Exception], ...]) -> None:
        self._agent = agent
        self._handle = handle
        self._errors = errors
        #: Whether what it was to read is not there.
        self.failed = False

    def begin(self) -> None:
        """Have it read. One that cannot be begun has failed, and is over like any other."""
        try:
            self._agent.transfer(self._handle)
        except self._errors as error:
            self._fail(error)

    def is_over(self) -> bool:
        """Whether nothing is read any more, and the handle is released."""
        try:
            state = self._agent.check_xfer_state(self._handle)
        except self._errors as error:
            state = "ERR"
            self._fail(error)
        if state == "PROC":
            return False
        self.failed |= state != "DONE"
        try:
            self._agent.release_xfer_handle(self._handle)
        except self._errors:
            return False
        return True

    def abandon(self) -> None:
        """Release the handle if that can be done."""
        with contextlib.suppress(*self._errors):
            self._agent.release_xfer_handle(self._handle)

    def _fail(self, error: Exception) -> None:
        if self.failed:
            return  # it was said, and may be found in every poll
        self.failed = True
        logger.warning("The fence of a hand-off could not be read: %s", error)

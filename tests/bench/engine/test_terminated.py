"""A benchmark that is ended by SIGTERM ends its servers, also those that are stopped while another one computes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from baton_serve.baton.cluster.process import stopped
from bench.engine.__main__ import until_terminated
from tests.kits.patience import PATIENCE_S


async def test_sigterm_goes_through_the_clean_up_of_servers_that_are_stopped() -> None:
    server = await asyncio.create_subprocess_exec("sleep", "600")

    async def work() -> None:
        try:
            with stopped(server.pid):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.Event().wait()
        finally:
            server.terminate()

    with pytest.raises(asyncio.CancelledError):
        await until_terminated(work())
    assert await asyncio.wait_for(server.wait(), PATIENCE_S) == -signal.SIGTERM


async def test_what_ends_by_itself_is_returned() -> None:
    assert await until_terminated(asyncio.sleep(0, "done")) == "done"

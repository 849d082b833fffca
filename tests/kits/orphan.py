"""Whether a process ends with the one that started it."""

from __future__ import annotations

import asyncio
import os
import sys

from baton_serve.core.process.interpreter import ROOT
from tests.kits.patience import PATIENCE_S


async def ends_with_parent(program: str) -> None:
    """Run a program that starts a process, prints its id and waits; kill the program, and wait until both have ended.

    Raises TimeoutError if the process goes on.
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    child_fd = os.pidfd_open(int(await parent.stdout.readline()))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(child_fd, ended.set)  # readable once the process has ended
    parent.kill()
    await parent.wait()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)
    asyncio.get_running_loop().remove_reader(child_fd)
    os.close(child_fd)
